"""Proof on the present device: golden cases with the reference's digests, and invariances that need no reference."""
