"""Constants of erf, gelu, gelu_tanh. Polynomials: `python -m bench.fit_error`.

..._PATCHES: (fp32 bits as int32, result) of each input at which rounding the binary64 number to fp32 is wrong.
"""

from repkernels.coefficients.numbers import numbers, patches

# Adding it rounds to an integer, which is then the low end of the sum's bits.
MAGIC = float.fromhex("0x1.8p+52")
# -log2(e) / 2, and the two coefficients of -log2(e) * sqrt(8 / pi) * (x + 0.044715 x^3).
MINUS_HALF_LOG2_E = float.fromhex("-0x1.71547652b82fep-1")
TANH_FIRST = float.fromhex("-0x1.26aec21bce759p+1")
TANH_THIRD = float.fromhex("-0x1.a5a7cf7572a98p-4")

# 2^f for |f| <= 1/2, with 1 at 0; largest relative error 2^-49.54 in (2^f - 1) / f.
EXP2 = numbers(
    "0x1.e4cf4fffd402bp-28",
    "0x1.b656a92782705p-24",
    "0x1.62c0833c72d27p-20",
    "0x1.ffcb76ed5c618p-17",
    "0x1.430912c7f6ef2p-13",
    "0x1.5d87fe906b06ap-10",
    "0x1.3b2ab6fbb406dp-7",
    "0x1.c6b08d7044203p-5",
    "0x1.ebfbdff82c541p-3",
    "0x1.62e42fefa39f7p-1",
    "0x1.0000000000000p+0",
)

# e^(t^2 / 2) * Phi(-t) for 0 <= t <= 14.25 in v = SCALE / (t + SHIFT) + OFFSET; largest relative error 2^-52.24. SHIFT
# is one of those near 5 with which no input is wrong. At t = 0 the sequence gives 1/2 - 2^-53, so that halves of odd
# subnormals round toward +infinity, as gelu does.
SHIFT = 5.25
SCALE = float.fromhex("0x1.cbca1af286bcap+3")
OFFSET = float.fromhex("-0x1.bca1af286bca2p+0")
MILLS = numbers(
    "-0x1.6517146170b74p-35",
    "0x1.2ca237e0b25aap-34",
    "0x1.d22cd32a8f277p-31",
    "-0x1.65204749b862dp-30",
    "-0x1.ee6c162d955f2p-27",
    "0x1.ba50df1ade693p-27",
    "0x1.17b1d9358fdf3p-22",
    "0x1.79a537633b55ep-23",
    "-0x1.324a162d777d5p-18",
    "-0x1.1e6165a462113p-16",
    "0x1.10ac59a40057bp-15",
    "0x1.2ca668f222b23p-11",
    "0x1.90abc705da354p-9",
    "0x1.6268be223c1d8p-7",
    "0x1.dd20b5645f2dap-6",
    "0x1.014609398d8dap-4",
    "0x1.c699dcdf9b340p-4",
    "0x1.4b8b496074f61p-3",
    "0x1.ee89bc162cb98p-4",
)

# erf(t) / t for 0 <= t <= ERF_LAST in t^2 / 8 - 1; largest relative error 2^-54.16.
# The last three are moved by up to 2 ulp, which leaves no input wrong. erf rounds to 1 at ERF_LAST.
ERF_LAST = 3.921875
ERF = numbers(
    "0x1.0864fb9ed0dfep-26",
    "-0x1.653fe89e9cf40p-25",
    "0x1.c5c4417edee58p-25",
    "-0x1.e4e74e908aaa9p-23",
    "0x1.e221602e5d3cfp-21",
    "-0x1.50db6e0ca0ae7p-19",
    "0x1.c70d3829ac234p-18",
    "-0x1.35e8ad8b07e69p-16",
    "0x1.91eddeeae6d95p-15",
    "-0x1.edc33a90deb10p-14",
    "0x1.20e25544555c9p-12",
    "-0x1.415cf322cc5e4p-11",
    "0x1.52dae6ecb9e18p-10",
    "-0x1.51eeb8859dce2p-9",
    "0x1.3e14fc09ed193p-8",
    "-0x1.1a02393aa4154p-7",
    "0x1.d6352b803270ap-7",
    "-0x1.7034fa0de5519p-6",
    "0x1.0ed52bf1bedc2p-5",
    "-0x1.76e86497876c0p-5",
    "0x1.ea97f14c912d6p-5",
    "-0x1.3215d8b764cbep-4",
    "0x1.717efc783f3ccp-4",
    "-0x1.b92e95c19292ap-4",
    "0x1.0dabaf0613ee4p-3",
    "-0x1.69a0ccda3df58p-3",
    "0x1.6a040781a499ep-2",
)
# Far below every rounding, but for halves of odd subnormals, which it moves off the middle.
TINY = 2.0**-178

GELU_TANH_PATCHES = patches(("b7b0a46f", "-0x1.61475ap-17"))
