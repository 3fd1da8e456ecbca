"""The first estimate of a reciprocal."""

# As fp32 bits, SEED - bits(b) is -1 / b within 0.0506 for every normal b > 0 whose reciprocal is normal: the best of
# its kind, found by trial (the sign bit is set; the rest is 0x7EF31000). As int32.
SEED = 0x7EF31000 - 0x80000000
