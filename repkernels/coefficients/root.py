"""The first estimate of 1 / sqrt(x)."""

# As fp32 bits, SEED - (bits(x) >> 1) is 1 / sqrt(x) within 0.0344, for every normal x > 0.
SEED = 0x5F375A86
