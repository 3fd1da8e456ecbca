"""Checks that all norms share: eps, and the weight and bias that a normalised tensor is multiplied and added with."""

import math

import torch
from torch import Tensor

from repkernels.ops import checks

_HALF = (torch.bfloat16, torch.float16)


def check_eps(eps: object) -> None:
    """Raises unless eps is a number >= 0."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(f"eps: expected a number, got {type(eps).__name__}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps: expected a finite number >= 0, got {eps}")


def check_parameter(name: str, v: Tensor | None, shape: tuple[int, ...], why: str, x: Tensor) -> None:
    """Raises unless v is None or a tensor of `shape` on x's device, of x's dtype or (x half) fp32.

    Under autocast any of fp32 and the half types will do. why: what the shape is.
    """
    if v is None:
        return
    checks.operand(name, v)
    if tuple(v.shape) != tuple(shape):
        raise RuntimeError(f"{name}: expected shape {tuple(shape)}, {why}, got {tuple(v.shape)}")
    if v.device != x.device:
        raise RuntimeError(f"{name}: on {v.device} but input is on {x.device}; move one of them")
    short = x.dtype != torch.float64 and v.dtype != torch.float64
    mixed = short and checks.autocast(checks.device_type(x)) is not None
    if not (v.dtype == x.dtype or mixed or (x.dtype in _HALF and v.dtype == torch.float32)):
        allowed = f"{x.dtype} or torch.float32" if x.dtype in _HALF else f"{x.dtype}"
        raise RuntimeError(f"{name}: dtype {v.dtype} does not fit input's {x.dtype}; use {allowed}")


def same_dtype(weight: Tensor | None, bias: Tensor | None) -> None:
    """Raises RuntimeError unless weight and bias, if both are given, have one dtype."""
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise RuntimeError(f"bias: dtype {bias.dtype} differs from weight's {weight.dtype}; convert one of them")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The format that a norm of `dtype` is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def result_dtype(x: Tensor) -> torch.dtype:
    """x's dtype; fp32 of half types under autocast, under which torch computes layer, rms and group norms in fp32."""
    return torch.float32 if x.dtype in _HALF and checks.autocast(checks.device_type(x)) is not None else x.dtype
