"""What must change no bit of an operation on rows: the rows around a row, memory layouts, warps, threads.

Each check takes the operation, dtype and device, and returns None or the first difference.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import repkernels
from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.compare import difference

Check = Callable[[str, str, torch.device], str | None]
Results = dict[str, Tensor]

ROWS = 67
# Less than a chunk of lanes, a little more than one, and more than four; and rows that registers do not hold.
WIDTHS = (5, 1000, 1025, 4100)
LONG = 17000
WARPS = (2, 8)


def _softmax(x: Tensor) -> Results:
    return {"softmax": functional.softmax(x, -1)}


def _log_softmax(x: Tensor) -> Results:
    return {"log_softmax": functional.log_softmax(x, -1)}


def _layer_norm(x: Tensor) -> Results:
    return {"layer_norm": functional.layer_norm(x, x.shape[-1:], *_parameters(x))}


def _rms_norm(x: Tensor) -> Results:
    return {"rms_norm": functional.rms_norm(x, x.shape[-1:], _parameters(x)[0])}


def _cross_entropy(x: Tensor) -> Results:
    # The same class for every row, so that a row alone has it too.
    target = torch.full(x.shape[:1], x.shape[1] // 2, device=x.device)
    return {"cross_entropy": functional.cross_entropy(x, target, reduction="none", label_smoothing=0.1)}


def _reduction(x: Tensor) -> Results:
    return {
        "sum": repkernels.sum(x, -1),
        "var": repkernels.var(x, -1),
        "logsumexp": repkernels.logsumexp(x, -1),
        "argmax": repkernels.argmax(x, -1),
        "cumsum": repkernels.cumsum(x, -1),
    }


OPERATIONS: dict[str, Callable[[Tensor], Results]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "cross_entropy": _cross_entropy,
    "reduction": _reduction,
}


def batches(op: str, dtype: str, device: torch.device) -> str | None:
    """Every row has the bits, of its result and of its gradient, that it has alone and among fewer rows."""
    for width in (*WIDTHS, LONG):
        x = _operand(dtype, (ROWS, width), device)
        whole = _results(op, x)
        for part in (slice(0, 1), slice(ROWS - 1, ROWS), slice(3, 36)):
            if message := _differing(_results(op, x[part]), whole, part):
                return f"{width} elements, rows {part.start} to {part.stop - 1} alone: {message}"
    return None


def layouts(op: str, dtype: str, device: torch.device) -> str | None:
    """Strided, transposed and misaligned rows give the bits of contiguous ones."""
    for width in WIDTHS:
        wide = _operand(dtype, (ROWS, 2 * width + 1), device)
        for name, view in (
            ("strided", wide[:, ::2][:, :width]),
            ("misaligned", wide[:, 1 : width + 1]),
            ("transposed", wide[:, :width].t().contiguous().t()),
        ):
            if message := _differing(
                _results(op, view), _results(op, view.clone(memory_format=torch.contiguous_format))
            ):
                return f"{width} elements, {name}: {message}"
    return None


def warps(op: str, dtype: str, device: torch.device) -> str | None:
    """Any number of warps gives the same bits."""
    from repkernels.kernels.launch import use_warps

    for width in (1000, 4100):
        x = _operand(dtype, (ROWS, width), device)
        wanted = _results(op, x)
        for count in WARPS:
            with use_warps(count):
                found = _results(op, x)
            if message := _differing(found, wanted):
                return f"{width} elements, {count} warps: {message}"
    return None


def threads(op: str, dtype: str, device: torch.device) -> str | None:
    """Any number of CPU threads gives the bits of one thread."""
    x = _operand(dtype, (ROWS, 1025), device)
    with _threads(1):
        wanted = _results(op, x)
    for count in (2, 3):
        with _threads(count):
            found = _results(op, x)
        if message := _differing(found, wanted):
            return f"{count} threads: {message}"
    return None


def checks(device: torch.device) -> Iterator[tuple[str, Check]]:
    """The checks for a device, with their titles."""
    yield "rows alone and in batches", batches
    yield "memory layouts", layouts
    if device.type == "cuda":
        yield "warps", warps
    else:
        yield "threads", threads


def _results(op: str, x: Tensor) -> Results:
    """The operation's results, and the gradient of x for a gradient that each row has alike."""
    x = x.detach().requires_grad_()
    results = OPERATIONS[op](x)
    grads = {}
    for name, value in results.items():
        if value.is_floating_point():
            upstream = inputs.operand("ordinary", str(value.dtype).removeprefix("torch."), (1, *value.shape[1:]), 0, 3)
            grad = upstream.to(value.device).expand(value.shape)
            (grads[f"gradient of {name}"],) = torch.autograd.grad(value, x, grad)
    return {name: value.detach() for name, value in results.items()} | grads


def _differing(found: Results, wanted: Results, part: slice | None = None) -> str | None:
    for name, value in found.items():
        if message := difference(value, wanted[name] if part is None else wanted[name][part]):
            return f"{name}: {message}"
    return None


def _parameters(x: Tensor) -> tuple[Tensor, Tensor]:
    name = str(x.dtype).removeprefix("torch.")
    weight, bias = (inputs.operand("ordinary", name, tuple(x.shape[-1:]), 0, stream) for stream in (1, 2))
    return weight.to(x.device), bias.to(x.device)


def _operand(dtype: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return inputs.operand("logits", dtype, shape, 7, 0).to(device)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
