"""A mode that looks at every operation below autograd and lets it run."""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from repkernels.audit.modules import Modules
from repkernels.audit.report import Report, Row
from repkernels.reproducible import NotReproducibleWarning, calls
from repkernels.reproducible.contractions import CONTRACTIONS
from repkernels.reproducible.mode import current, running
from repkernels.reproducible.tables import COMPOSITE, OURS, PASS, SILENT, Entry, verdict

_HINT = "ours in reproducible() or a converted model"
# Operations that read no element, or make tensors of none.
_SILENT = frozenset(
    """
    detach alias view _unsafe_view t transpose permute expand as_strided unsqueeze squeeze select slice split unbind
    empty empty_like empty_strided new_empty new_empty_strided lift_fresh _local_scalar_dense record_stream
    """.split()
)


class Recorder(TorchDispatchMode):
    """Records what runs in the body of `with`, in `report`."""

    def __init__(self) -> None:
        super().__init__()
        self.report = Report()
        self._rows: dict[tuple[str, str, str, str], Row] = {}
        self._modules = Modules()
        self._lock = threading.Lock()

    def __enter__(self) -> "Recorder":
        self._modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._modules.__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in SILENT:
            return func(*args, **kwargs)
        own = func.namespace == "repkernels"
        if not own and (running() or calls.ours()):  # a step of one of this library's operations
            return func(*args, **kwargs)
        entry = verdict(func, args, kwargs)
        if entry.verdict == COMPOSITE:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if own:
            self._add(func, "ours", "this library's", args)
        elif entry.verdict == PASS:
            if entry.name not in _SILENT:
                self._add(func, "safe", entry.reason, args)
        elif (mode := current()) is not None:
            return self._under(mode, func, entry, args, kwargs)
        elif entry.verdict == OURS:
            self._add(func, "not reproducible", f"{entry.reason}; {_HINT}", args, entry)
        else:
            self._add(func, "not reproducible", entry.reason, args)
        return func(*args, **kwargs)

    def _under(self, mode: Any, func: Any, entry: Entry, args: Any, kwargs: Any) -> Any:
        """An operation that `reproducible()` runs or refuses: what it did is what is recorded."""
        mode.refusal = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotReproducibleWarning)
            result = func(*args, **kwargs)
        if mode.refusal is None:
            self._add(func, "ours", "run by reproducible()", args, entry)
        else:
            self._add(func, "not reproducible", mode.refusal, args)
        return result

    def _add(self, func: Any, verdict: str, reason: str, args: Any, entry: Entry | None = None) -> None:
        overload = "" if func._overloadname == "default" else f".{func._overloadname}"
        name = f"{func._schema.name}{overload}"
        direction = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        peak = _peak(name, entry, args)
        with self._lock:
            key = (name, self._modules.path(), direction, verdict)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = Row(*key, reason)
                self.report.rows.append(row)
            row.count += 1
            if peak is not None:
                row.peak = max(peak, row.peak or 0.0)


def _peak(name: str, entry: Entry | None, args: Any) -> float | None:
    """The largest max / rms of the vectors that a product or convolution contracts; None for other operations."""
    plain = name.split("::")[1].split(".")[0]
    if plain.startswith("conv"):
        return max(_of_rows(x.flatten(1)) for x in args[:2])
    product = plain in ("matmul", "matmul_by_token") if name.startswith("repkernels::") else plain in CONTRACTIONS
    operands = [x for x in args if isinstance(x, Tensor)]
    if not product or plain.startswith("_") or len(operands) < 2:
        return None
    left, right = operands[-2:] if plain.startswith(("add", "badd")) else operands[:2]
    if plain == "linear" or right.ndim == 1:
        return max(_of_rows(left), _of_rows(right))
    return max(_of_rows(left), _of_rows(right.mT))


def _of_rows(x: Tensor) -> float:
    if not x.numel() or not x.is_floating_point() or x.is_meta:
        return 0.0
    x = x.detach().float()
    ratio = x.abs().amax(-1) / x.square().mean(-1).sqrt()
    return float(ratio.nan_to_num(0.0, 0.0, 0.0).max())
