"""Constants of the half types' own sequences: fp32 numbers, degrees just high enough for the results of 8 or 11 bits.

Polynomials by `python -m bench.fit_half`; moved, where that lessens the wrong inputs, by less than their error.
..._PATCHES: (fp32 bits as int32, result) of each input at which the sequence alone is wrong, of all 65536.
"""

from repkernels.coefficients.numbers import numbers, patches

MAGIC = 1.5 * 2.0**23
# 2^-64 times results that would be subnormal otherwise.
RAISED = MAGIC + 64
LOWER = 2.0**-64

# log2(e) in two parts, and the coefficients of log2(e) sqrt(8 / pi) (x + 0.044715 x^3).
LOG2_E, LOG2_E_LOW = numbers("0x1.715476p+0", "0x1.4ae0cp-26")
TANH_FIRST, TANH_THIRD = numbers("0x1.26aec2p+1", "0x1.a5a7dp-4")

# (2^f - 1) / f for |f| <= 1/2.
EXP2_BF16 = numbers(
    "0x1.39f77ep-7",
    "0x1.c9f5d6p-5",
    "0x1.ec0382p-3",
    "0x1.62e10ap-1",
)
EXP2_FP16 = numbers(
    "0x1.41f554p-13",
    "0x1.5f3b3cp-10",
    "0x1.3b2d52p-7",
    "0x1.c6aefp-5",
    "0x1.ebfbdcp-3",
    "0x1.62e43p-1",
)

# e^(t^2 / 2) Phi(-t) in v = SCALE / (t + SHIFT) + OFFSET, for t <= 13.8 and t <= 5.9.
SHIFT = 3.25
SCALE_BF16, OFFSET_BF16 = numbers("0x1.00fc4ap+3", "-0x1.789468p+0")
MILLS_BF16 = numbers(
    "-0x1.5d8edp-12",
    "-0x1.c336ap-11",
    "0x1.2f1baap-8",
    "0x1.145c0cp-5",
    "0x1.aafbbap-4",
    "0x1.9f3918p-3",
    "0x1.3f2b24p-3",
)
SCALE_FP16, OFFSET_FP16 = numbers("0x1.429386p+3", "-0x1.0d0456p+1")
MILLS_FP16 = numbers(
    "0x1.f0332ep-17",
    "-0x1.01bb14p-14",
    "-0x1.b9e84cp-12",
    "0x1.6cf6d4p-10",
    "0x1.3334a6p-6",
    "0x1.4750ep-4",
    "0x1.9707bep-3",
    "0x1.9d04b6p-3",
)

SIGMOID_FP16_PATCHES = patches(
    ("bbb00000", "0x1.fe80000000000p-2"), ("bbf00000", "0x1.fe00000000000p-2"), ("bc380000", "0x1.fd40000000000p-2")
)
SILU_BF16_PATCHES = patches(("c0430000", "-0x1.1c00000000000p-3"))
SILU_FP16_PATCHES = patches(("3bf7e000", "0x1.f1c0000000000p-9"))
GELU_BF16_PATCHES = patches(("beac0000", "-0x1.fa00000000000p-4"))
GELU_TANH_FP16_PATCHES = patches(
    ("3aaf8000", "0x1.5f80000000000p-11"),
    ("3eb4e000", "0x1.cd80000000000p-3"),
    ("bdbe2000", "-0x1.6040000000000p-5"),
    ("be106000", "-0x1.0040000000000p-4"),
)
