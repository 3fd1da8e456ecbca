"""torch.nn's activations over `nn.functional`: the same arguments, repr and state_dict keys."""

import torch
from torch import Tensor

from repkernels.nn import functional


class GELU(torch.nn.GELU):
    """torch.nn.GELU, as `nn.functional.gelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.gelu(input, approximate=self.approximate)


class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU, as `nn.functional.silu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.silu(input, self.inplace)


class Sigmoid(torch.nn.Sigmoid):
    """torch.nn.Sigmoid, as `nn.functional.sigmoid`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.sigmoid(input)


class Tanh(torch.nn.Tanh):
    """torch.nn.Tanh, as `nn.functional.tanh`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.tanh(input)


class Softplus(torch.nn.Softplus):
    """torch.nn.Softplus, as `nn.functional.softplus`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softplus(input, self.beta, self.threshold)


class Mish(torch.nn.Mish):
    """torch.nn.Mish, as `nn.functional.mish`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.mish(input, self.inplace)


class ELU(torch.nn.ELU):
    """torch.nn.ELU, as `nn.functional.elu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.elu(input, self.alpha, self.inplace)


class SELU(torch.nn.SELU):
    """torch.nn.SELU, as `nn.functional.selu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.selu(input, self.inplace)


class CELU(torch.nn.CELU):
    """torch.nn.CELU, as `nn.functional.celu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.celu(input, self.alpha, self.inplace)


class Hardswish(torch.nn.Hardswish):
    """torch.nn.Hardswish, as `nn.functional.hardswish`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardswish(input, self.inplace)


class Hardsigmoid(torch.nn.Hardsigmoid):
    """torch.nn.Hardsigmoid, as `nn.functional.hardsigmoid`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardsigmoid(input, self.inplace)


class Hardtanh(torch.nn.Hardtanh):
    """torch.nn.Hardtanh, as `nn.functional.hardtanh`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(torch.nn.ReLU6):
    """torch.nn.ReLU6, as `nn.functional.relu6`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu6(input, self.inplace)


class LeakyReLU(torch.nn.LeakyReLU):
    """torch.nn.LeakyReLU, as `nn.functional.leaky_relu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.leaky_relu(input, self.negative_slope, self.inplace)


class PReLU(torch.nn.PReLU):
    """torch.nn.PReLU, as `nn.functional.prelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.prelu(input, self.weight)


class Threshold(torch.nn.Threshold):
    """torch.nn.Threshold, as `nn.functional.threshold`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.threshold(input, self.threshold, self.value, self.inplace)


class Softsign(torch.nn.Softsign):
    """torch.nn.Softsign, as `nn.functional.softsign`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softsign(input)


class Tanhshrink(torch.nn.Tanhshrink):
    """torch.nn.Tanhshrink, as `nn.functional.tanhshrink`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.tanhshrink(input)


class Hardshrink(torch.nn.Hardshrink):
    """torch.nn.Hardshrink, as `nn.functional.hardshrink`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardshrink(input, self.lambd)


class Softshrink(torch.nn.Softshrink):
    """torch.nn.Softshrink, as `nn.functional.softshrink`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softshrink(input, self.lambd)


class LogSigmoid(torch.nn.LogSigmoid):
    """torch.nn.LogSigmoid, as `nn.functional.logsigmoid`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.logsigmoid(input)


class GLU(torch.nn.GLU):
    """torch.nn.GLU, as `nn.functional.glu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.glu(input, self.dim)


class RReLU(torch.nn.RReLU):
    """torch.nn.RReLU, as `nn.functional.rrelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.rrelu(input, self.lower, self.upper, self.training, self.inplace)
