"""Correctly rounded functions of one fp32 number on the CPU (SPEC.md, "Correctly rounded functions")."""
