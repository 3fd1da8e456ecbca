"""Constants of the derivatives' formulas (SPEC.md, "Derivatives"), each an fp32 number.

MILLS: Phi(-a) * e^(a^2 / 2) = sum of MILLS[k] * u^(k+1), u = 1 / (1 + MILLS_SCALE * a), 0 <= a <= 14, fitted for least
relative error (2e-8) by reweighted least squares on Chebyshev nodes of u.
"""

LN2 = float.fromhex("0x1.62e430p-1")
LOG2_E = float.fromhex("0x1.715476p+0")
LOG10_E = float.fromhex("0x1.bcb7b2p-2")
TWO_OVER_SQRT_PI = float.fromhex("0x1.20dd76p+0")
ONE_OVER_SQRT_2PI = float.fromhex("0x1.988454p-2")

MILLS_SCALE = float.fromhex("0x1.666666p-2")
MILLS = tuple(
    float.fromhex(c)
    for c in (
        "0x1.1dedfcp-3", "0x1.1ec2a8p-3", "0x1.e4f61ep-4", "0x1.cdc434p-4", "-0x1.7447fep-5",
        "0x1.a02690p-3", "-0x1.3ebb20p-2", "0x1.7fc004p-3", "-0x1.8b6e36p-5", "0x1.dbda9ap-9",
    )
)  # fmt: skip

# gelu's tanh form is x * sigmoid(z), z = x * (GELU_LINEAR + GELU_CUBIC * x^2); z' has 3 * GELU_CUBIC.
GELU_LINEAR = float.fromhex("0x1.988454p+0")
GELU_CUBIC = float.fromhex("0x1.2444f2p-4")
GELU_CUBIC_SLOPE = float.fromhex("0x1.b6676cp-3")

# selu's scale and scale * alpha.
SELU_SCALE = float.fromhex("0x1.0cfabep+0")
SELU_SCALE_ALPHA = float.fromhex("0x1.c212ccp+0")
