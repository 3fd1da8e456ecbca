"""Constants of exp, exp2, expm1 and what is made of them. Polynomials: `python -m bench.fit_functions`.

..._PATCHES: (fp32 bits as int32, result) of each input at which rounding the binary64 number to fp32 is wrong. They
belong to the sequence of operations in kernels/rounded/ and cpu/rounded/: another one has others. Functions without
such a list have no such input.
"""

from repkernels.coefficients.numbers import numbers, patches

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# ln 2 in two parts, the first of 42 bits, so that its product with an exponent is exact.
MINUS_LN2_HIGH = float.fromhex("-0x1.62e42fefa3800p-1")
MINUS_LN2_LOW = float.fromhex("-0x1.ef35793c76730p-45")
# Adding it rounds to an integer, which is then the low end of the sum's bits.
MAGIC = float.fromhex("0x1.8p+52")

# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; largest error 2^-58.02 in e^r.
EXP = numbers(
    "0x1.af859b19f0c53p-26",
    "0x1.28b03f0750623p-22",
    "0x1.71dddfbe04431p-19",
    "0x1.a019969e67bbbp-16",
    "0x1.a01a01bae9073p-13",
    "0x1.6c16c185a3756p-10",
    "0x1.111111110d626p-7",
    "0x1.5555555550042p-5",
    "0x1.5555555555561p-3",
    "0x1.000000000000bp-1",
)
# (2^r - 1) / r for |r| <= 1/2; largest error 2^-58.03 in 2^r.
EXP2 = numbers(
    "0x1.ea186c9d55597p-32",
    "0x1.e61ca9be8788ep-28",
    "0x1.b524cdccecf8bp-24",
    "0x1.62bfc6cbf03f5p-20",
    "0x1.ffcbfc7c58a11p-17",
    "0x1.4309130f2fd3ep-13",
    "0x1.5d87fe78a0de4p-10",
    "0x1.3b2ab6fb9ff54p-7",
    "0x1.c6b08d704a0d7p-5",
    "0x1.ebfbdff82c5a5p-3",
    "0x1.62e42fefa39efp-1",
)

SELU_SCALE = float.fromhex("0x1.0cfabd6a91132p+0")
# scale * alpha, the product of the two binary64 numbers, in two parts.
SELU_HIGH = float.fromhex("0x1.c212cc640f030p+0")
SELU_LOW = float.fromhex("0x1.092dbf6372048p-54")
# The fp32 number below 1/4.
NEAR_HALF = float.fromhex("0x1.fffffep-3")

EXP2_PATCHES = patches(("3b429d37", "0x1.00870ap+0"), ("bcf3a937", "0x1.f58d62p-1"))
SILU_PATCHES = patches(("b7100000", "-0x1.1fffb0p-18"))
SOFTPLUS_PATCHES = patches(("39ea41d0", "0x1.63017ap-1"))
MISH_PATCHES = patches(("b3a00000", "-0x1.7ffffep-25"))
