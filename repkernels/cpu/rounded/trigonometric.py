"""sin(pi x) and cos(pi x), correctly rounded where Box and Muller need them, as in kernels/rounded/trigonometric.py.

Evaluated in binary64 by the same operations as there, and rounded to fp32 once.
"""

import numpy as np
from numba import njit

from repkernels.coefficients import trigonometric as c
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import polynomial

F32, F64, I32 = np.float32, np.float64, np.int32

MAGIC32, SINPI, COSPI = F32(c.MAGIC32), c.SINPI, c.COSPI


@njit
def sincospi(x):
    """(RN32(sin(pi x)), RN32(cos(pi x))) for x a multiple of 2^-23 in [0, 2); zeros are +0."""
    m = fma(x, F32(2), MAGIC32)
    # A part of a quarter turn, exact.
    f = F64(fma(x, F32(2), MAGIC32 - m))
    z = f * f
    s = F32(polynomial(z, SINPI) * f)
    c = F32(polynomial(z, COSPI))
    quarters = bitcast(m)
    odd = quarters & 1 != 0
    # Adding +0 makes -0 a +0.
    return with_turns(c if odd else s, quarters) + F32(0), with_turns(s if odd else c, I32(quarters + 1)) + F32(0)


@njit
def with_turns(y, quarters):
    """-y where bit 1 of `quarters` is set."""
    return bitcast(I32(bitcast(y) ^ I32((quarters & 2) << 30)))
