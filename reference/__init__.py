"""The independent truth: every operation from its definition in SPEC.md, in NumPy, Python integers and mpmath.

Nothing here is fast or imports the library; the library's results must have these bits.
"""
