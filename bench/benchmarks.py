"""Every benchmark: importing this registers them."""

from . import adam, attention, conv, cross_entropy, layer_norm, matmul, sample, softmax, unary  # noqa: F401
