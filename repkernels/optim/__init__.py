"""Optimizers with torch.optim's names, arguments and state, and the same bits on every device."""

from repkernels.optim import lr_scheduler
from repkernels.optim.adam import Adam, AdamW
from repkernels.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "lr_scheduler"]
