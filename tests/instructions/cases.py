"""What is launched for the checks: calls of the library's kernel functions, at shapes that reach each way they compile.

Aligned operands start on 16-byte borders and have sizes that 16 divides, so Triton specialises pointers, strides and
sizes; odd ones do not.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from repkernels.digits import Digits
from repkernels.kernels import matmul as mm
from repkernels.kernels.engine import use_engine

NOTHING: frozenset[str] = frozenset()


class Case(NamedTuple):
    """A call, and by kernel the operand types of products of tiles that it must (`need`) and may (`may`) have."""

    name: str
    start: Callable[[], object]
    need: Mapping[str, frozenset[str]] = {}
    may: Mapping[str, frozenset[str]] = {}


def tensor(*shape: int, dtype: torch.dtype = torch.float32, odd: bool = False) -> Tensor:
    """Memory that is never touched; `odd` shifts it by one element, off every 16-byte border."""
    size = 1
    for length in shape:
        size *= length
    return torch.empty(size + odd, dtype=dtype)[int(odd) :].view(shape)


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


def _forced(configuration: mm.Configuration, *args: object, **kwargs: object) -> None:
    with mm.use_configuration(configuration):
        _matmul(*args, **kwargs)  # type: ignore[arg-type]


def _tiles(contract: str, dtype: torch.dtype, engine: str) -> dict[str, Mapping[str, frozenset[str]]]:
    """The products of tiles in the kernels of a contraction: of digits, and of sign classes in half precision."""
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}.get(dtype, "")
    if contract == "ordered":
        return {"need": {"ordered_kernel": frozenset({"f32"})}}
    if contract == "native":
        return {"need": {"native_kernel": frozenset({name})}}
    digits = frozenset({"i8" if engine == "int8" else "f16"})
    return {
        "need": {"fixed_kernel": digits},
        "may": {"fixed_kernel": digits | {"f16"}, "finish_kernel": frozenset({"f16"})},
    }


def matmul_cases(every_configuration: bool) -> Iterator[Case]:
    """Every contract, element type, engine and way through memory; every tile too where that is asked for."""
    fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
    large, odd, narrow, long = (512, 512, 512), (77, 131, 333), (16, 4096, 4096), (64, 64, 2**18)
    table: list[tuple[str, str, torch.dtype, tuple[int, int, int], dict[str, object]]] = [
        ("aligned", "ordered", fp32, large, {}),
        ("bias, odd", "ordered", fp32, odd, {"bias": True, "odd": True}),
        ("two chunks", "ordered", bf16, (64, 128, 8192), {"across": True}),
        ("binary64", "ordered", torch.float64, odd, {"odd": True}),
        ("aligned", "native", bf16, large, {"bias": True}),
        ("across", "native", fp16, large, {"across": True}),
        ("odd", "native", bf16, odd, {"odd": True}),
        ("narrow", "native", bf16, narrow, {}),
    ]
    for contract, dtype in (("fixed8", bf16), ("fixed16", bf16), ("fixed24", fp32), ("fixed32", fp32)):
        table += [
            ("aligned", contract, dtype, large, {"bias": True}),
            ("odd", contract, dtype, odd, {"odd": True}),
            ("narrow, digits kept", contract, dtype, narrow, {"kept": "digits"}),
            ("narrow, scales kept", contract, dtype, narrow, {"kept": "scales"}),
            ("split", contract, dtype, long, {}),
            ("window16", contract, dtype, large, {"engine": "window16"}),
        ]
    for what, contract, dtype, shape, options in table:
        engine = str(options.get("engine", "int8"))
        name = f"matmul {contract} {str(dtype)[6:]} {what}"
        yield Case(name, partial(_matmul, contract, dtype, shape, **options), **_tiles(contract, dtype, engine))  # type: ignore[arg-type]
    if every_configuration:
        for contract, dtype in (("ordered", fp32), ("native", bf16), ("fixed8", bf16), ("fixed16", bf16),
                                ("fixed24", fp32), ("fixed32", fp32)):  # fmt: skip
            for c in mm.configurations(contract):
                tile = f"{c.BM}x{c.BN}x{c.BK}, {c.num_warps} warps, {c.num_stages} stages"
                yield Case(f"matmul {contract} {str(dtype)[6:]} {tile}", partial(_forced, c, contract, dtype, large),
                           **_tiles(contract, dtype, "int8"))  # type: ignore[arg-type]  # fmt: skip


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`; every tile on sm_90 only."""
    yield from matmul_cases(every_configuration=target == "sm_90")
