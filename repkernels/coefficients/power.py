"""Constants of pow: power series, the coefficients with k below a bound in two binary64 words.

With |s| < 0.1716 and |r| <= 1/2, what a series leaves out, and what its coefficients of one word lose, is below 2^-102
of the sum.
"""

from repkernels.coefficients.numbers import numbers

# 2 / ((2k + 1) ln 2): log2((1 + s) / (1 - s)) = sum of c_k s^(2k+1). k = 19 .. 9, then 8 .. 0 as (high, low).
LOG2_TAIL = numbers(
    "0x1.2f0a39b3764ebp-4",
    "0x1.3f6ba49a91758p-4",
    "0x1.51ac4eec8b247p-4",
    "0x1.66235b77002e7p-4",
    "0x1.7d3e699fb5deep-4",
    "0x1.9789566cee8d2p-4",
    "0x1.b5b96fca558e1p-4",
    "0x1.d8be0817f5ffep-4",
    "0x1.00ecd7e080215p-3",
    "0x1.1964ec6fc9491p-3",
    "0x1.3703c1f4d0ffep-3",
)
LOG2_HEAD = (
    numbers("0x1.5b9ac9b743f0dp-3", "0x1.0d0e5e1d8f408p-57"),
    numbers("0x1.89f3b1694cffep-3", "-0x1.2339777c86c81p-60"),
    numbers("0x1.c68f568d31760p-3", "0x1.ce23c4e96378ep-59"),
    numbers("0x1.0c9a84994022dp-2", "0x1.42b91d166906ap-57"),
    numbers("0x1.484b13d7c02a9p-2", "-0x1.e55fc724e0a2cp-60"),
    numbers("0x1.a61762a7aded9p-2", "0x1.fb22e490ee2f0p-57"),
    numbers("0x1.2776c50ef9bfep-1", "0x1.e4b29ccc535d4p-55"),
    numbers("0x1.ec709dc3a03fdp-1", "0x1.d27f05548af0cp-55"),
    numbers("0x1.71547652b82fep+1", "0x1.777d0ffda0d24p-55"),
)
# (ln 2)^k / k!: 2^r = sum of c_k r^k. k = 22 .. 13, then 12 .. 0 as (high, low).
EXP2_TAIL = numbers(
    "0x1.5acfad3701dc1p-82",
    "0x1.57fc5783e09c8p-77",
    "0x1.45acc4b505136p-72",
    "0x1.25a7ecb835c65p-67",
    "0x1.f7176bdb43696p-63",
    "0x1.98444b41c25a8p-58",
    "0x1.38e89ae79f8b4p-53",
    "0x1.c36e843b04022p-49",
    "0x1.314964d5878a9p-44",
    "0x1.816193166d0f9p-40",
)
EXP2_HEAD = (
    numbers("0x1.c3bd650fc2986p-36", "-0x1.d4a9781e85d12p-92"),
    numbers("0x1.e8cac7351bb25p-32", "-0x1.f8543350dc6f6p-87"),
    numbers("0x1.e4cf5158b8ecap-28", "-0x1.204bc4d5a312dp-85"),
    numbers("0x1.b5253d395e7c4p-24", "-0x1.2dac78d2d8038p-79"),
    numbers("0x1.62c0223a5c824p-20", "-0x1.3800cfc92c41ep-79"),
    numbers("0x1.ffcbfc588b0c7p-17", "-0x1.e53ab8cde09c6p-71"),
    numbers("0x1.430912f86c787p-13", "0x1.bd2c2a261ac8dp-67"),
    numbers("0x1.5d87fe78a6731p-10", "0x1.0717f69a514bfp-66"),
    numbers("0x1.3b2ab6fba4e77p-7", "0x1.4e65df05a9f75p-62"),
    numbers("0x1.c6b08d704a0c0p-5", "-0x1.d331627513351p-59"),
    numbers("0x1.ebfbdff82c58fp-3", "-0x1.5e43a53e44da3p-57"),
    numbers("0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56"),
    numbers("0x1.0000000000000p+0", "0x0p+0"),
)
