"""Scalars of kernels: binary64 numbers as integers.

Triton passes a Python float as fp32 only, rounded by the calling thread, which may flush subnormals.
"""

import struct

import triton
import triton.language as tl


@triton.jit
def scalar(bits, WIDE: tl.constexpr):
    """The binary64 number of these bits, rounded once to WIDE."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(WIDE)


def bits(number: float) -> int:
    """The bits of a binary64 number as an int64."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


def signed(number: int) -> int:
    """The int64 with the bits of an integer below 2^64."""
    return number - (number >> 63 << 64)
