"""Constants of sincospi. Polynomials: `python -m bench.fit_trigonometric`."""

from repkernels.coefficients.numbers import numbers

# In fp32 it rounds to an integer, which is then the low end of the sum's bits.
MAGIC32 = 1.5 * 2.0**23

# sin(pi/2 f) / f and cos(pi/2 f) in f^2 for |f| <= 1/2; largest errors 2^-47.65 relative to the sine, and 2^-54 where
# f is largest. These, short as they are, leave none of the 2^24 arguments of `sincospi` wrong.
SINPI = numbers(
    "-0x1.dd4e56b720264p-19",
    "0x1.5071bedb5fa5bp-13",
    "-0x1.32d2c629981b4p-8",
    "0x1.466bc670fd262p-4",
    "-0x1.4abbce62577bap-1",
    "0x1.921fb54442cf8p+0",
)
COSPI = numbers(
    "0x1.f3f397a3b679fp-22",
    "-0x1.a6ca0e175b6afp-16",
    "0x1.e1f4fc1bce9f9p-11",
    "-0x1.55d3c7dcd8c46p-6",
    "0x1.03c1f081b16e7p-2",
    "-0x1.3bd3cc9be45a8p+0",
    "0x1.0000000000000p+0",
)
