"""Constants of log, log2, log10, log1p. Polynomials: `python -m bench.fit_functions`; patches as in exponential.py."""

from repkernels.coefficients.numbers import numbers, patches

# High word of sqrt(1/2), above a low word of zeros: significands are taken from there to twice that.
SQRT_HALF_BITS = 0x3FE6A09E << 32

LN2_HIGH = float.fromhex("0x1.62e42fefa39efp-1")
LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-56")
LOG10_2_HIGH = float.fromhex("0x1.34413509f79ffp-2")
LOG10_2_LOW = float.fromhex("-0x1.9dc1da994fd21p-59")
TWO_LOG2_E_HIGH = float.fromhex("0x1.71547652b82fep+1")
TWO_LOG2_E_LOW = float.fromhex("0x1.777d0ffda0d24p-55")
TWO_LOG10_E_HIGH = float.fromhex("0x1.bcb7b1526e50ep-1")
TWO_LOG10_E_LOW = float.fromhex("0x1.95355baaafad3p-56")

# (2 atanh(s) - 2 s) / s^3 in z = s^2, s = (m - 1) / (m + 1) of those significands; largest error 2^-59.5 in the log.
ATANH = numbers(
    "0x1.2f0563fa8249bp-3",
    "0x1.39a1bad3ac607p-3",
    "0x1.74663ee59fe88p-3",
    "0x1.c71c520973e6dp-3",
    "0x1.24924941f0fc1p-2",
    "0x1.999999997fdbbp-2",
    "0x1.5555555555592p-1",
)
# The same for s up to 1/3; largest error 2^-59.4.
ATANH_WIDE = numbers(
    "0x1.5c8a77f30d943p-3",
    "0x1.559c2e6bda91ap-4",
    "0x1.efdd8a4056831p-4",
    "0x1.10676834fdcb3p-3",
    "0x1.3b1de32a569e0p-3",
    "0x1.745cb39b39cbcp-3",
    "0x1.c71c741f8cb55p-3",
    "0x1.2492492085792p-2",
    "0x1.99999999a083fp-2",
    "0x1.5555555555535p-1",
)
# The first one times log2(e), log10(e).
ATANH_LOG2 = numbers(
    "0x1.b52abeef49d30p-3",
    "0x1.c47998524c7dep-3",
    "0x1.0ca11f2a8a41ep-2",
    "0x1.484afcf253befp-2",
    "0x1.a61762d20d1e2p-2",
    "0x1.2776c50ee72e5p-1",
    "0x1.ec709dc3a0455p-1",
)
ATANH_LOG10 = numbers(
    "0x1.073364129f3cap-4",
    "0x1.106ac5f0bdb42p-4",
    "0x1.4376460fe9199p-4",
    "0x1.8b4dd76214d78p-4",
    "0x1.fc3fa64815addp-4",
    "0x1.63c627750eb1ap-3",
    "0x1.287a7636f4394p-2",
)

LOG_PATCHES = patches(
    ("3c413d3a", "-0x1.1c2b1ep+2"),
    ("41178feb", "0x1.1fcbcep+1"),
    ("4c5d65a5", "0x1.1e0696p+4"),
    ("65d890d3", "0x1.a9a3f2p+5"),
    ("6f31a8ec", "0x1.08b512p+6"),
)
LOG10_PATCHES = patches(("0efeee7a", "-0x1.d33a46p+4"))
LOG1P_PATCHES = patches(
    ("35400003", "0x1.7ffffep-21"),
    ("3710001b", "0x1.1fffe6p-17"),
    ("41078feb", "0x1.1fcbcep+1"),
    ("65d890d3", "0x1.a9a3f2p+5"),
    ("6f31a8ec", "0x1.08b512p+6"),
    ("b53ffffd", "-0x1.800002p-21"),
    ("b70fffe5", "-0x1.20001ap-17"),
    ("bb0ec8c4", "-0x1.1de14ap-9"),
)
