"""Correctly rounded functions of a block of fp32 numbers in Triton (SPEC.md, "Correctly rounded functions")."""
