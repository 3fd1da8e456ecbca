"""Random numbers, from this library's generator: each call takes its next stream."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels import random
from repkernels.nn import functional
from repkernels.reproducible import library

WHY = "each device of torch has random numbers of its own"
_DEFAULT = ("dtype", "layout", "device", "pin_memory", "memory_format")


def _refuse(generator: Any) -> None:
    if generator is not None:
        raise NotImplementedError(
            "a torch.Generator draws other numbers on each device; draw without one, from repkernels.random's"
        )


def _host(function: Callable[..., Any], args: tuple[Any, ...], generator: Any, kwargs: dict[str, Any]) -> Any:
    """Integers of a named generator of the CPU: a Mersenne twister, the same everywhere."""
    if generator.device.type != "cpu":
        _refuse(generator)
    return function(*args, generator=generator, **kwargs)


def _like(kind: str) -> Callable[..., Tensor]:
    draw = getattr(random, kind)

    def call(input: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
        return draw(input.shape, dtype=dtype or input.dtype, device=device or input.device)

    return call


def _sized(kind: str) -> Callable[..., Tensor]:
    draw = getattr(random, kind)

    def call(size: Sequence[int], *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        _refuse(generator)
        return draw(tuple(size), dtype=dtype or torch.get_default_dtype(), device=device)

    return call


def _uniform(input: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None, **named: float) -> Tensor:
    _refuse(generator)
    low, high = named.get("from", low), named.get("to", high)
    return random.uniform(input.shape, low, high, dtype=input.dtype, device=input.device)


def _normal_into(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    _refuse(generator)
    return random.normal(input.shape, mean, std, dtype=input.dtype, device=input.device)


def _fill_normal(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return input.copy_(_normal_into(input, mean, std, generator=generator))


def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **named: Any) -> Tensor:
    """torch.normal with tensors: mean + std * z, each operation rounded."""
    _refuse(generator)
    if size is not None:
        return random.normal(
            tuple(size), mean, std, dtype=named.get("dtype") or torch.float32, device=named.get("device")
        )
    like = torch.broadcast_tensors(*(x for x in (mean, std) if isinstance(x, Tensor)))[0]
    return random.normal(like.shape, dtype=like.dtype, device=like.device) * std + mean


def _exponential(input: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """-ln(1 - u) / lambd, u uniform, each operation rounded; 2^-25 for the logarithm where u is 0, as none may be 0."""
    _refuse(generator)
    u = random.uniform(input.shape, device=input.device)
    t = (library.log1p(u * -1.0) * -1.0).masked_fill(u == 0, 2.0**-25)
    return library.div(t, lambd).to(input.dtype)


def _bernoulli(input: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    _refuse(generator)
    if p is None:
        return random.bernoulli(input)
    if isinstance(p, Tensor):
        return random.bernoulli(p.to(input.device).expand(input.shape), dtype=input.dtype)
    return random.bernoulli(p, input.shape, dtype=input.dtype, device=input.device)


def _bernoulli_into(input: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return input.copy_(_bernoulli(input, p, generator=generator))


def _integers(*args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
    if generator is not None:
        return _host(torch.randint, args, generator, kwargs)
    *bounds, size = args
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    dtype = kwargs.get("dtype") or torch.int64
    if dtype.is_floating_point:
        return random.randint(low, high, tuple(size), device=kwargs.get("device")).to(dtype)
    return random.randint(low, high, tuple(size), dtype=dtype, device=kwargs.get("device"))


def _integers_like(input: Tensor, *bounds: int, **kwargs: Any) -> Tensor:
    named = {"dtype": kwargs.get("dtype") or input.dtype, "device": kwargs.get("device") or input.device}
    return _integers(*bounds, input.shape, **named)


def _random(input: Tensor, *bounds: Any, generator: Any = None, **named: Any) -> Tensor:
    """random_: integers of [from, to), or of all that the dtype holds exactly."""
    if generator is not None:
        return _host(torch.empty_like(input).random_, bounds, generator, named)
    if "from" in named:
        bounds = (named["from"], named.get("to"))
    elif "to" in named:
        bounds = (named["to"],)
    low, high = (0, *bounds) if len(bounds) == 1 else bounds or (0, None)
    if high is None:
        digits = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.bool: 1}
        least = 1 << digits[input.dtype] if input.dtype in digits else torch.iinfo(input.dtype).max
        high = least + 1 if input.dtype in digits and input.dtype != torch.bool else least
        high = 2 if input.dtype == torch.bool else high
    return random.randint(low, high, input.shape, device=input.device).to(input.dtype)


def _permutation(n: int, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    if generator is not None:
        return _host(torch.randperm, (n,), generator, {"dtype": dtype or torch.int64, "device": device})
    return random.permutation(n, device=device).to(dtype or torch.int64)


def _multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    _refuse(generator)
    return random.multinomial(input, num_samples, replacement)


def _dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    ones = functional.dropout(torch.ones_like(input, dtype=torch.float32), p, train is not False)
    mask = ones != 0
    scale = 1 / (1 - p) if p < 1 and train is not False else 1.0
    return _scaled(input, mask, scale), mask


def _dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    return _scaled(grad_output, mask, scale)


def _scaled(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.where(mask, x * scale, torch.zeros((), dtype=x.dtype, device=x.device))


ATEN: dict[str, Callable[..., Any]] = {
    "rand": _sized("uniform"),
    "randn": _sized("normal"),
    "rand_like": _like("uniform"),
    "randn_like": _like("normal"),
    "randint": _integers,
    "randint_like": _integers_like,
    "randperm": _permutation,
    "uniform": _uniform,
    "normal": _normal,
    "normal.float_float": _normal,
    "normal_": _fill_normal,  # its functional form has another name than its own without the underscore
    "normal_functional": _normal_into,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_into,
    "exponential": _exponential,
    "random": _random,
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "dropout": functional.dropout,
}
