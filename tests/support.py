"""What several test files share: devices, bit comparison, and the way between tensors and the reference's arrays."""

import numpy as np
import torch
from torch import Tensor

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x: Tensor) -> Tensor:
    """The bit patterns of a tensor as integers on the CPU, every NaN as one."""
    x = x.detach().cpu().contiguous()
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.full((), float("nan"), dtype=x.dtype), x)
    return x.view(_INTEGERS[x.element_size()])


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal dtypes, shapes and bits; says where the first difference is."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    different = (bits(actual) != bits(expected)).nonzero()
    if len(different):
        index = tuple(different[0].tolist())
        raise AssertionError(f"{len(different)} differ, first at {index}: {actual[index]!r} != {expected[index]!r}")


def values(x: Tensor) -> np.ndarray:
    """A tensor as the reference holds it: fp32 values, or fp64."""
    x = x.detach().cpu()
    return (x if x.dtype == torch.float64 else x.float()).numpy()


def name(dtype: torch.dtype) -> str:
    """A dtype's name in the reference."""
    return str(dtype).removeprefix("torch.")


def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The reference's values as a tensor of their format."""
    return torch.from_numpy(np.asarray(array).copy()).to(dtype)


def randn(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Tensor:
    """Normal numbers from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
