"""Contractions, and the first kernels beside them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from repkernels.digits import Digits
from repkernels.kernels import matmul as mm
from repkernels.kernels import sum as sums
from repkernels.kernels.engine import use_engine
from tests.instructions.case import Case, everything, tensor
from tests.instructions.compiled import TARGETS


def _matmul(
    contract: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    engine: str = "int8",
    odd: bool = False,
    bias: bool = False,
    kept: str = "",
    across: bool = False,
) -> None:
    M, N, K = shape
    a = tensor(1, M, K, dtype=dtype, odd=odd)
    b = tensor(1, K, N, dtype=dtype, odd=odd) if across else tensor(1, N, K, dtype=dtype, odd=odd).transpose(1, 2)
    digits = None
    if kept:
        S = int(contract[5:]) // 8
        full = mm.quantize(b.transpose(1, 2), S)
        digits = full if kept == "digits" else Digits(full.planes.new_empty((0,)), full.scale)
    with use_engine(engine):
        mm.matmul(a, b, tensor(N, dtype=dtype, odd=odd) if bias else None, contract, digits)


def _forced(configuration: mm.Configuration, *args: Any, **kwargs: Any) -> None:
    with mm.use_configuration(configuration):
        _matmul(*args, **kwargs)


def _case(
    what: str, contract: str, dtype: torch.dtype, start: Callable[[], object], engine: str = "int8", dots: str = ""
) -> Case:
    """dots: the operand type of the products of tiles, where it does not follow from the contract."""
    kind = str(dtype).removeprefix("torch.")
    if contract == "native":
        dots = {"bfloat16": "bf16", "float16": "f16"}[kind]
    elif contract.startswith("fixed"):
        dots = "i8" if engine == "int8" else "f16"
    need = frozenset({dots} - {""})
    # The sign classes that decide non-finite outputs of `fixed` are multiplied in half precision, exactly.
    may = need | {"f16"} if contract.startswith("fixed") else need
    return Case(f"matmul {contract} {kind} {what}", start, may, need)


def _matmul_cases(target: str) -> Iterator[Case]:
    """Every contract, engine and way through memory; with every number of digits and more tiles on sm_90."""
    fp32, bf16, fp16, fp64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
    large, odd, narrow, long = (2048, 4096, 1024), (77, 131, 333), (16, 4096, 4096), (64, 64, 2**18)
    full = everything(target)
    # fp32 products of tiles have no one order on AMD's matrix cores, so `ordered` writes its chains out there.
    chains = "" if TARGETS[target].hip else "f32"

    def case(what: str, contract: str, dtype: torch.dtype, shape: tuple[int, int, int], **options: Any) -> Case:
        start = partial(_matmul, contract, dtype, shape, **options)
        dots = chains if contract == "ordered" and dtype != fp64 else ""
        return _case(what, contract, dtype, start, options.get("engine", "int8"), dots)

    yield case("aligned", "ordered", fp32, large)
    yield case("bias, odd", "ordered", fp32, odd, bias=True, odd=True)
    yield case("two chunks", "ordered", bf16, (64, 128, 8192), across=True)
    yield case("binary64", "ordered", fp64, odd, odd=True)
    yield case("aligned", "native", bf16, large, bias=True)
    yield case("across", "native", fp16, large, across=True)
    yield case("odd", "native", bf16, odd, odd=True)
    yield case("narrow", "native", bf16, narrow)
    for contract, dtype in (("fixed8", bf16), ("fixed16", bf16), ("fixed24", fp32), ("fixed32", fp32)):
        if full or contract in ("fixed16", "fixed32"):
            yield case("aligned", contract, dtype, large, bias=True)
        if full or contract == "fixed32":
            yield case("split", contract, dtype, long)
        if full or contract == "fixed16":
            yield case("narrow, digits kept", contract, dtype, narrow, kept="digits")
        if contract == "fixed16" or (full and contract == "fixed32"):
            yield case("odd", contract, dtype, odd, odd=True)
            yield case("narrow, scales kept", contract, dtype, narrow, kept="scales", bias=True)
            yield case("window16", contract, dtype, large, engine="window16")
    if full:
        yield case("across", "fixed24", fp32, (512, 512, 512), across=True)
        for contract, dtype in (("ordered", fp32), ("native", bf16), ("fixed16", bf16)):
            for c in mm.configurations(contract):
                shape = (min(c.BN, 64), 4096, 1024) if c.swap else large
                start = partial(_forced, c, contract, dtype, shape)
                yield _case(
                    f"{c.BM}x{c.BN}x{c.BK}", contract, dtype, start, dots="f32" if contract == "ordered" else ""
                )


def _scales_alone() -> None:
    """`prepare(..., keep="scales")` makes no digits."""
    mm.quantize(tensor(1, 4096, 4096), 2, planes=False)


def _sum(dtype: torch.dtype, rows: int, columns: int, odd: bool = False) -> None:
    sums.sum_rows(tensor(rows, columns, dtype=dtype, odd=odd))


def _other_cases() -> Iterator[Case]:
    yield Case("quantize, scales alone", _scales_alone)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        kind = str(dtype).removeprefix("torch.")
        yield Case(f"sum {kind}", partial(_sum, dtype, 4096, 256))
    yield Case("sum of blocks, odd", partial(_sum, torch.float32, 70001, 3, odd=True))


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield from _other_cases()
    yield from _matmul_cases(target)
