"""Linear layers with int8 weights, for inference."""

import torch
from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.nn import functional


class Int8Linear(torch.nn.Module):
    """A linear layer whose weight is int8 with a scale for each output channel: `nn.functional.int8_linear`.

    in_features, out_features, bias, device, dtype: torch.nn.Linear's; dtype is that of inputs and bias. The weight is
    0 at first: `Int8Linear.from_linear(layer)` makes one of a layer, by `quantize_int8`.
    Buffers: weight (out_features, in_features) int8, scale (out_features,) fp32. bias is a parameter.
    contract: an attribute, None at first: what this layer follows instead of the contract in force, a `fixedNN`.
    """

    contract: ContractLike | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight: Tensor
        self.scale: Tensor
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8, device=device))
        self.register_buffer("scale", torch.zeros(out_features, dtype=torch.float32, device=device))
        offset = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.bias = None if offset is None else torch.nn.Parameter(offset)

    @classmethod
    def from_linear(cls, layer: torch.nn.Linear) -> "Int8Linear":
        """The layer with its weight rounded to int8, on its device; the bias is its own parameter."""
        weight = layer.weight
        made = cls(layer.in_features, layer.out_features, False, weight.device, weight.dtype)
        made.weight, made.scale = functional.quantize_int8(weight)
        made.bias = layer.bias
        made.contract = getattr(layer, "contract", None)
        return made.train(layer.training)

    def _apply(self, fn, recurse: bool = True) -> "Int8Linear":  # type: ignore[no-untyped-def]
        """The scale stays fp32 where a model is cast."""
        scale = self.scale
        super()._apply(fn, recurse)
        if self.scale.dtype != torch.float32:
            self.scale = scale.to(self.scale.device)
        return self

    def forward(self, input: Tensor) -> Tensor:
        return functional.int8_linear(input, self.weight, self.scale, self.bias, contract=self.contract)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
