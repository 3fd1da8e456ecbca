"""sin(pi x) and cos(pi x) of a block of fp32 numbers, correctly rounded where Box and Muller need them.

Evaluated in binary64 and rounded to fp32 once. Every line is one rounded operation, as in cpu/rounded/trigonometric.py.
"""

import triton
import triton.language as tl

from repkernels.coefficients import trigonometric as c
from repkernels.kernels.rounded.arithmetic import polynomial

MAGIC32 = tl.constexpr(c.MAGIC32)
SINPI = tl.constexpr(c.SINPI)
COSPI = tl.constexpr(c.COSPI)


@triton.jit
def sincospi(x):
    """(RN32(sin(pi x)), RN32(cos(pi x))) for x a multiple of 2^-23 in [0, 2); zeros are +0."""
    m = tl.fma(x, 2.0, MAGIC32)
    # A part of a quarter turn, exact.
    f = tl.fma(x, 2.0, MAGIC32 - m).to(tl.float64)
    z = f * f
    s = (polynomial(z, SINPI) * f).to(tl.float32)
    c = polynomial(z, COSPI).to(tl.float32)
    quarters = m.to(tl.int32, bitcast=True)
    odd = (quarters & 1) != 0
    # Adding +0 makes -0 a +0.
    return (
        with_turns(tl.where(odd, c, s), quarters) + 0.0,
        with_turns(tl.where(odd, s, c), quarters + 1) + 0.0,
    )


@triton.jit
def with_turns(y, quarters):
    """-y where bit 1 of `quarters` is set."""
    return (y.to(tl.int32, bitcast=True) ^ ((quarters & 2) << 30)).to(tl.float32, bitcast=True)
