"""Local response normalisation (SPEC.md, "local_response_norm"): an average over neighbouring channels, and a power."""

from torch import Tensor

from repkernels.ops.arithmetic import div, pow
from repkernels.ops.avg_pool import avg_pool3d
from repkernels.ops.distances import wide
from repkernels.ops.pad import pad
from repkernels.ops.plain import add, multiply


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (a * alpha + k)^beta, a the average of x * x over `size` channels around, zeros beyond; torch's signature.

    input: (N, C, ...), fp32, bf16 or fp16, computed in fp32 and rounded once. Raises ValueError below 3 dimensions.
    """
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if input.numel() == 0:
        return input
    (x,), dtype = wide(input=input)
    squares = multiply(x, x).reshape(x.shape[0], 1, x.shape[1], x.shape[2], -1)
    squares = pad(squares, (0, 0, 0, 0, size // 2, (size - 1) // 2))
    average = avg_pool3d(squares, (size, 1, 1), stride=1).reshape(x.shape)
    return div(x, pow(add(multiply(average, alpha), k), beta)).to(dtype)
