"""What an argument must be before anything is launched: one error that names it, what was given and what would work."""

import functools
import numbers

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def operand(name: str, x: object, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
    """Raises unless `x` is a dense tensor of one of `dtypes` on a supported device.

    TypeError for what is not a tensor; NotImplementedError (a RuntimeError, as torch raises) for the others.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        listed = ", ".join(str(d) for d in dtypes)
        raise NotImplementedError(f"{name}: dtype {x.dtype} is not supported; use one of {listed}")
    if x.layout != torch.strided or x.is_nested:
        raise NotImplementedError(f"{name}: only dense strided tensors are supported, got {x.layout}; call .to_dense()")
    if not (x.is_cuda or x.is_cpu or x.is_meta):
        raise NotImplementedError(
            f"{name}: device {x.device} is not supported; move it to the CPU or a CUDA or ROCm GPU"
        )
    if x.is_cuda and too_old(x.device):
        raise NotImplementedError(f"{name}: {x.device} is older than compute capability 7.0, which Triton needs")


@functools.cache
def too_old(device: torch.device) -> bool:
    """Whether Triton has no code for this NVIDIA GPU."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) < (7, 0)


def same(name: str, x: Tensor, first_name: str, first: Tensor) -> None:
    """Raises RuntimeError unless `x` has the dtype and device of `first`."""
    if x.dtype != first.dtype:
        raise RuntimeError(f"{name}: dtype {x.dtype} differs from {first_name}'s {first.dtype}; convert one of them")
    if x.device != first.device:
        raise RuntimeError(f"{name}: on {x.device} but {first_name} is on {first.device}; move one of them")


def number(name: str, x: object) -> float:
    """x, a real number or a 0-d tensor of one, as a float; TypeError for anything else."""
    if isinstance(x, numbers.Real) or (isinstance(x, Tensor) and x.ndim == 0 and not x.is_complex()):
        return float(x)
    raise TypeError(f"{name}: expected a real number, got {type(x).__name__}")


def device_type(x: Tensor) -> str:
    """`x.device.type`, several times faster where it is usual."""
    return "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type


def autocast(device_type: str) -> torch.dtype | None:
    """The dtype that autocast asks for on this device type; None where it is off."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as autocast passes it on: floating tensors in `dtype`, fp64 and the rest untouched."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
