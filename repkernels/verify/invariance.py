"""What must change no bit of a matrix product: the rows around a row, tiles, engines, memory layouts, threads.

Each check takes the contract, dtype and device, and returns None or the first difference.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import repkernels
from repkernels.verify import inputs
from repkernels.verify.compare import difference

Check = Callable[[str, str, torch.device], str | None]

# One row, around the sizes of tiles, more rows than any tile has.
BATCHES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4096)
POSITIONS = (0, 1, 14, 15, 16, 63, 64, 127, 128, 1000, 4095)


def batches(contract: str, dtype: str, device: torch.device) -> str | None:
    """Every row of 4096 has the bits it has alone and in batches of any size, at any position in them."""
    a, b = _operand(dtype, (4096, 321), 0, device), _operand(dtype, (321, 67), 1, device)
    whole = _matmul(a, b, contract)
    for row in POSITIONS:
        if message := difference(_matmul(a[row : row + 1], b, contract)[0], whole[row]):
            return f"row {row} alone: {message}"
    for size in BATCHES:
        for start in {0, (4096 - size) // 2, 4096 - size}:
            part = slice(start, start + size)
            if message := difference(_matmul(a[part], b, contract), whole[part]):
                return f"rows {start} to {start + size - 1}: {message}"
    if message := difference(_matmul(a.view(64, 64, 321), b, contract).view(4096, 67), whole):
        return f"in 64 batches of 64 rows: {message}"
    return None


def layouts(contract: str, dtype: str, device: torch.device) -> str | None:
    """Strided, transposed, expanded, overlapping and misaligned operands give the bits of contiguous copies."""
    for name, a, b in _views(dtype, device):
        wanted = _matmul(a.contiguous(), b.contiguous(), contract)
        if message := difference(_matmul(a, b, contract), wanted):
            return f"{name}: {message}"
    bias = _operand(dtype, (98,), 2, device)
    a, b = _operand(dtype, (67, 201), 0, device), _operand(dtype, (201, 49), 1, device)
    for name, view in (("strided", bias[::2]), ("expanded", bias[:1].expand(49)), ("misaligned", bias[1:50])):
        wanted = repkernels.matmul(a, b, bias=view.contiguous(), contract=contract)
        if message := difference(repkernels.matmul(a, b, bias=view, contract=contract), wanted):
            return f"{name} bias: {message}"
    return None


def threads(contract: str, dtype: str, device: torch.device) -> str | None:
    """Any number of CPU threads gives the bits of one thread."""
    a, b = _operand(dtype, (131, 1037), 0, device), _operand(dtype, (1037, 97), 1, device)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = _matmul(a, b, contract)
        for count in (2, 3, 4, 6):
            torch.set_num_threads(count)
            if message := difference(_matmul(a, b, contract), wanted):
                return f"{count} threads: {message}"
    finally:
        torch.set_num_threads(before)
    return None


def prepared(contract: str, dtype: str, device: torch.device) -> str | None:
    """A weight whose digits or scales are kept gives the bits of one quantised in the call, for one row and many."""
    x, weight = _operand(dtype, (131, 1037), 0, device), _operand(dtype, (97, 1037), 1, device)
    wanted = _matmul(x, weight.t(), contract)
    for keep in ("digits", "scales"):
        kept = repkernels.prepare(weight, contract, keep)
        for rows in (1, 16, 131):
            if message := difference(repkernels.matmul(x[:rows], kept), wanted[:rows]):
                return f"{keep} kept, {rows} rows: {message}"
    return None


def engines(contract: str, dtype: str, device: torch.device) -> str | None:
    """Every engine that the device can run gives the bits of the one it would choose."""
    a, b = _operand(dtype, (131, 1037), 0, device), _operand(dtype, (1037, 97), 1, device)
    wanted = _matmul(a, b, contract)
    for name in other_engines(device):
        with use_engine(name):
            if message := difference(_matmul(a, b, contract), wanted):
                return f"engine {name}: {message}"
    return None


def configurations(contract: str, dtype: str, device: torch.device) -> str | None:
    """Every tile and number of warps that the launcher can choose gives the same bits, for few rows and many."""
    from triton.runtime.errors import OutOfResources

    from repkernels.kernels import matmul as kernels

    a, b = _operand(dtype, (131, 1037), 0, device), _operand(dtype, (1037, 97), 1, device)
    wanted = _matmul(a, b, contract)
    for configuration in kernels.configurations(contract):
        for rows in (131, 3):
            try:
                with kernels.use_configuration(configuration):
                    found = _matmul(a[:rows], b, contract)
            except OutOfResources:
                # The launcher never chooses what does not fit on the device.
                continue
            if message := difference(found, wanted[:rows]):
                return f"{configuration}, {rows} rows: {message}"
    return None


def other_engines(device: torch.device) -> list[str]:
    """The engines that a GPU can run beside the one it would choose."""
    from repkernels.kernels.engine import ENGINES, engine_for

    chosen = engine_for(device)
    no_int8 = torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0)
    return [name for name in ENGINES if name != chosen and not (name == "int8" and no_int8)]


def use_engine(name: str) -> contextlib.AbstractContextManager[None]:
    """`fixed` contractions inside the block run on the engine `name`."""
    from repkernels.kernels import engine

    return engine.use_engine(name)


def checks(contract: str, device: torch.device) -> Iterator[tuple[str, Check]]:
    """The checks that concern a contract on a device."""
    yield "batches", batches
    yield "layouts", layouts
    if contract.startswith("fixed"):
        yield "prepared", prepared
    if device.type == "cpu":
        yield "threads", threads
        return
    yield "configurations", configurations
    if contract.startswith("fixed"):
        yield "engines", engines


def _views(dtype: str, device: torch.device) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(what is special, a, b) with operands that are no plain contiguous matrices."""

    def drawn(*shape: int, stream: int) -> Tensor:
        return _operand(dtype, shape, stream, device)

    a, b = drawn(67, 201, stream=0), drawn(201, 49, stream=1)
    yield "transposed a", drawn(201, 67, stream=0).t(), b
    yield "transposed b", a, drawn(49, 201, stream=1).t()
    yield "both transposed", drawn(201, 67, stream=0).t(), drawn(49, 201, stream=1).t()
    yield "strided", drawn(134, 402, stream=0)[::2, ::2], drawn(402, 147, stream=1)[1::2, ::3]
    yield (
        "misaligned",
        _shifted(drawn(1 + 67 * 201, stream=0), (67, 201)),
        _shifted(drawn(1 + 201 * 49, stream=1), (201, 49)),
    )
    yield "rows that overlap", drawn(5000, stream=0).as_strided((64, 64), (65, 1)), drawn(64, 49, stream=1)
    yield "windows that overlap", drawn(5000, stream=0).as_strided((64, 201), (1, 3)), b
    yield "one row expanded", drawn(1, 201, stream=0).expand(67, 201), b
    yield "one column expanded", drawn(67, 1, stream=0).expand(67, 201), drawn(1, 49, stream=1).expand(201, 49)
    yield "batches permuted", drawn(67, 5, 201, stream=0).transpose(0, 1), drawn(49, 201, 5, stream=1).permute(2, 1, 0)
    yield "a batch expanded", drawn(1, 67, 201, stream=0).expand(5, -1, -1), drawn(5, 201, 49, stream=1)


def _shifted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x without its first element: not aligned to more than one element."""
    return x[1:].view(shape)


def _operand(dtype: str, shape: tuple[int, ...], stream: int, device: torch.device) -> Tensor:
    return inputs.operand("ordinary", dtype, shape, 0, stream).to(device)


def _matmul(a: Tensor, b: Tensor, contract: str) -> Tensor:
    return repkernels.matmul(a, b, contract=contract)
