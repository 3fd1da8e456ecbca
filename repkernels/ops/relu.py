"""ReLU (SPEC.md, "relu"): a selection, so it needs no kernel of its own."""

from torch import Tensor


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """x where x > 0 or x is NaN, else +0; any shape, dtype and device.

    The gradient is g where x > 0 or x is NaN, else +0. inplace: writes to `input`, as torch.nn.functional.relu does.
    """
    # By the sign bit, since `x <= 0` holds of a positive subnormal where torch.set_flush_denormal is on.
    rest = input.signbit() & (input == input)
    return input.masked_fill_(rest, 0) if inplace else input.masked_fill(rest, 0)
