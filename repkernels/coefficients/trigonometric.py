"""Constants of sin, cos, sincospi. Polynomials and digits: `python -m bench.fit_trigonometric`.

COS_PATCHES: (fp32 bits of |x| as int32, result) of each input at which rounding the binary64 number is wrong.
"""

from repkernels.coefficients.numbers import numbers, patches

# The first 224 bits of 2/pi behind the point, after 32 zeros.
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
TWO_OVER_PI_ROUNDED = float.fromhex("0x1.45f306dc9c883p-1")

# sin(pi/2 f) / f and cos(pi/2 f) in f^2 for |f| <= 1/2; largest errors 2^-58 and 2^-64.
SIN = numbers(
    "0x1.e3eed8c16e6f1p-25",
    "-0x1.e30063a95bdb2p-19",
    "0x1.50782fca4376cp-13",
    "-0x1.32d2cce2d5418p-8",
    "0x1.466bc67758700p-4",
    "-0x1.4abbce625be41p-1",
    "0x1.921fb54442d18p+0",
)
COS = numbers(
    "-0x1.b2734e462a587p-28",
    "0x1.f9cc77291b8d9p-22",
    "-0x1.a6d1ecc901b50p-16",
    "0x1.e1f50683cdb82p-11",
    "-0x1.55d3c7e3c96edp-6",
    "0x1.03c1f081b5ab1p-2",
    "-0x1.3bd3cc9be45dep+0",
    "0x1.0000000000000p+0",
)
COS_PATCHES = patches(("5f18b878", "0x1.fe2976p-1"), ("6115cb11", "0x1.f0285ep-1"))

# In fp32 it rounds to an integer, which is then the low end of the sum's bits.
MAGIC32 = 1.5 * 2.0**23

# The same, with errors 2^-47.65 relative to the sine, and 2^-54 where f is largest. These, short as they are, leave
# none of the 2^24 arguments of `sincospi` wrong.
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
