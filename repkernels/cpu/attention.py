"""Attention and its gradients on the CPU (SPEC.md, "Attention"): all contracts, dense, packed and from pages."""

import numpy as np
import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences
from repkernels.contract import digits_of
from repkernels.cpu.attention_backward import key_gradients, query_gradients, row_products
from repkernels.cpu.attention_forward import attend
from repkernels.cpu.attention_operands import BF16, FP16, FP32, SEGMENT
from repkernels.cpu.attention_scores import BOOL_MASK, END, LOW, NO_MASK, Mask, Operand, Options
from repkernels.cpu.spread import spread

# Query rows of a task, about: enough for reading keys to cost little beside them.
ROWS = 96
_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16}
_NO_FP32, _NO_HALF, _NO_TRUTH = np.empty(0, np.float32), np.empty(0, np.int16), np.empty(0, np.uint8)


def attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, mask: Tensor | None, sinks: Tensor | None,
    sequences: Sequences, attention: Attention,
) -> None:  # fmt: skip
    """out (B, Hq, L, Ev) and, where wanted, lse (B, Hq, L) of q, k, v as `Sequences` says, any strides."""
    table, page = _pages(sequences, k)
    rows = _rows(q, k, sequences)
    if sequences.queries is not None:
        out.zero_()
    tasks, most = _query_tasks(rows, q, k)
    spread(
        attend, len(tasks), _work(rows, q, v), tasks, rows, _operand(q), _operand(k), _operand(v), _operand(out), table,
        _mask(mask), _NO_FP32 if sinks is None else sinks.detach().numpy(),
        _NO_FP32 if lse is None else _memory(lse), (0, 0, 0) if lse is None else lse.stride(),
        (most, q.shape[3], v.shape[3]), _options(q, k, attention, page),
    )  # fmt: skip


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, sinks: Tensor | None,
    grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_scores: Tensor | None, sequences: Sequences,
    attention: Attention,
) -> None:  # fmt: skip
    """Writes all of grad_q, grad_k, grad_v and, where wanted, grad_scores (B, Hq, L, S), fp32."""
    table, page = _pages(sequences, k)
    rows = _rows(q, k, sequences)
    for x in (grad_q, grad_k, grad_v, grad_scores):
        if x is not None:
            x.zero_()
    d = np.empty(q.shape[:3], np.float32)
    spread(row_products, d.size, grad.numel(), _operand(grad), _operand(out), tuple(out.shape), d)
    tasks, most = _query_tasks(rows, q, k)
    options = _options(q, k, attention, page)
    operands = (_operand(grad), _operand(q), _operand(k), _operand(v), table, _mask(mask), lse.numpy(), d)
    scores = np.empty((0, 0, 0, 0), np.float32) if grad_scores is None else grad_scores.numpy()
    work, sizes = _work(rows, q, v), (most, q.shape[3], v.shape[3])
    spread(query_gradients, len(tasks), work, tasks, rows, *operands, _operand(grad_q), scores, sizes, options)
    tasks = _key_tasks(rows, k)
    spread(key_gradients, len(tasks), work, tasks, rows, *operands, _operand(grad_k), _operand(grad_v), sizes, options)


def _memory(x: Tensor) -> np.ndarray:
    """The memory that x covers, 1-D, half types as int16."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    covered = x.detach().as_strided((last + 1 if x.numel() else 0,), (1,))
    return (covered if x.dtype == torch.float32 else covered.view(torch.int16)).numpy()


def _operand(x: Tensor) -> Operand:
    kind, memory, strides = _KINDS[x.dtype], _memory(x), x.stride()
    return Operand(memory, _NO_HALF, kind, strides) if kind == FP32 else Operand(_NO_FP32, memory, kind, strides)


def _mask(mask: Tensor | None) -> Mask:
    if mask is None:
        return Mask(_NO_TRUTH, _NO_FP32, _NO_HALF, NO_MASK, (0, 0, 0, 0))
    if mask.dtype == torch.bool:
        last = sum((size - 1) * stride for size, stride in zip(mask.shape, mask.stride(), strict=True))
        truth = mask.as_strided((last + 1,), (1,)).view(torch.uint8).numpy()
        return Mask(truth, _NO_FP32, _NO_HALF, BOOL_MASK, mask.stride())
    x = _operand(mask)
    return Mask(_NO_TRUTH, x.fp32, x.half, x.kind, x.strides)


def _options(q: Tensor, k: Tensor, attention: Attention, page: int) -> Options:
    left, right = attention.window
    scale, softcap = np.float32(attention.scale), np.float32(attention.softcap)
    group = q.shape[1] // k.shape[1]
    return Options(attention.causal, left, right, scale, softcap, digits_of(attention.contract), group, page)


def _pages(sequences: Sequences, k: Tensor) -> tuple[np.ndarray, int]:
    """The table, and the size of a page; 0 where there is none."""
    if sequences.table is None:
        return np.zeros((1, 1), np.int32), 0
    return sequences.table.numpy(), k.shape[2]


def _rows(q: Tensor, k: Tensor, sequences: Sequences) -> np.ndarray:
    """The table of sequences that attention_scores describes."""
    if sequences.queries is None:
        batch = np.arange(q.shape[0])
        place = 0 * batch if sequences.first_key is None else sequences.first_key.numpy().astype(np.int64)
        start = 0 * batch if sequences.first_query is None else sequences.first_query.numpy().astype(np.int64)
        columns = (batch, 0 * batch, place, np.maximum(0, -place), k.shape[2] - place, start, 0 * batch + q.shape[2])
        return np.stack(columns, 1)
    queries = sequences.queries.numpy().astype(np.int64)
    assert sequences.keys is not None
    keys, count = sequences.keys.numpy().astype(np.int64), np.diff(queries)
    none = np.zeros_like(count)
    lengths, place = (np.diff(keys), keys[:-1]) if sequences.table is None else (keys, none)
    return np.stack((none, queries[:-1], place, none, np.maximum(lengths, 0), lengths - count, count), 1)


def _query_tasks(rows: np.ndarray, q: Tensor, k: Tensor) -> tuple[np.ndarray, int]:
    """(sequence, KV head, first query, queries) of each task, and the most rows of one."""
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    step = max(1, ROWS // group)
    found = [
        (b, head, first, min(step, count - first))
        for b, count in enumerate(rows[:, -1].tolist())
        for first in range(0, count, step)
        for head in range(heads)
    ]
    most = max((count for *_, count in found), default=0) * group
    return np.array(found, np.int64).reshape(-1, 4), -(-most // 4) * 4


def _key_tasks(rows: np.ndarray, k: Tensor) -> np.ndarray:
    """(sequence, KV head, segment) of each task."""
    found = [
        (b, head, segment)
        for b, (low, end) in enumerate(rows[:, [LOW, END]].tolist())
        for segment in range(low // SEGMENT, -(-end // SEGMENT) if low < end else low // SEGMENT)
        for head in range(k.shape[1])
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def _work(rows: np.ndarray, q: Tensor, v: Tensor) -> int:
    """About how many elements' worth of time it takes."""
    pairs = int((rows[:, -1] * np.maximum(rows[:, END] - rows[:, LOW], 1)).sum())
    return pairs * q.shape[1] * (q.shape[3] + v.shape[3]) // 8
