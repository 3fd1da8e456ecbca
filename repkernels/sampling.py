"""Tokens drawn from logits, each by its own request's seed, position and sample number (SPEC.md, "Sampling")."""

from repkernels.ops.sample import Sampled, sample

__all__ = ["Sampled", "sample"]
