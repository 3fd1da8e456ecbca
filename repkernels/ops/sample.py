"""Sampling of tokens from logits (SPEC.md, "Sampling"): by integer weights and one word of the request's own stream."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.sort import topk

LONGEST = 1 << 22
PROMPT = 1 << 30
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MODES = ("raw_logprobs", "processed_logprobs")
Parameter = Tensor | float | None


class Sampled(NamedTuple):
    """What `sample` returns."""

    tokens: Tensor
    logprobs: Tensor | None
    top_logprobs: Tensor | None
    top_tokens: Tensor | None


def _run(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    samples: Tensor,
) -> tuple[Tensor, Tensor]:
    kernels = backend("sample", logits.device.type)
    found: tuple[Tensor, Tensor] = kernels.sample(logits, temperature, top_k, top_p, min_p, seeds, positions, samples)
    return found


_op = torch.library.custom_op("repkernels::sample", _run, mutates_args=())


@_op.register_fake
def _(logits: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return logits.new_empty((rows,), dtype=torch.int64), logits.new_empty(logits.shape, dtype=torch.float32)


def _run_penalised(logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    found: Tensor = backend("sample", logits.device.type).penalised(logits, counts, repetition, frequency, presence)
    return found


_penalised_op = torch.library.custom_op("repkernels::penalised", _run_penalised, mutates_args=())


@_penalised_op.register_fake
def _(logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


def _run_scaled(logits: Tensor, temperature: Tensor, e: Tensor) -> Tensor:
    found: Tensor = backend("sample", logits.device.type).scaled_logits(logits, temperature, e)
    return found


_scaled_op = torch.library.custom_op("repkernels::scaled_logits", _run_scaled, mutates_args=())


@_scaled_op.register_fake
def _(logits: Tensor, temperature: Tensor, e: Tensor) -> Tensor:
    return torch.empty_like(e)


def _run_chosen(logits: Tensor, tokens: Tensor) -> Tensor:
    found: Tensor = backend("sample", logits.device.type).log_probabilities(logits, tokens)
    return found


_chosen_op = torch.library.custom_op("repkernels::log_probabilities", _run_chosen, mutates_args=())


@_chosen_op.register_fake
def _(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.new_empty(tokens.shape, dtype=torch.float32)


def sample(
    logits: Tensor,
    *,
    temperature: Parameter = 1.0,
    top_k: Tensor | int | None = None,
    top_p: Parameter = None,
    min_p: Parameter = None,
    repetition_penalty: Parameter = None,
    frequency_penalty: Parameter = None,
    presence_penalty: Parameter = None,
    prompt: Tensor | None = None,
    output: Tensor | None = None,
    seeds: Tensor | int = 0,
    positions: Tensor | int = 0,
    samples: Tensor | int = 0,
    logprobs: int | None = 0,
    logprobs_mode: str = "raw_logprobs",
) -> Sampled:
    """One token from each row of logits; row i's result depends on row i's logits, history and parameters alone.

    logits: (B, V), fp32, bf16 or fp16 on the CPU or a GPU, any strides, V <= 2^22. Parameters: numbers, or tensors (B,)
    on logits' device, which the host does not read (CUDA graphs), so that a batch mixes requests.

    - repetition_penalty: divides (logits below 0: multiplies) those of tokens in `prompt` or `output`, as transformers.
      frequency_penalty, presence_penalty: subtracted for each time, and once, for tokens in `output`, as OpenAI.
      prompt, output: ids (B, H), any integer dtype; entries below 0 count for nothing.
    - temperature: 0 (or less) is greedy: the lowest id among the largest logits, whatever the other parameters.
    - top_k: the most likely k tokens (0 or None: all); top_p: of these the fewest whose share is p or more; min_p: of
      these the ones at least min_p times as likely as the likeliest. Equal ones: the lowest ids first.
    - seeds: int64, a request's key; positions: 0 for the first generated token, ...; samples: which of the request's n
      answers. These three choose the random word, 64 bits.

    Result: `Sampled(tokens, logprobs, top_logprobs, top_tokens)`: tokens int64 (B,); with logprobs = n the chosen
    token's log-probability, fp32 (B,), for n > 0 also those of the n likeliest and their ids, (B, n); with None nothing
    of these. logprobs_mode: "raw_logprobs" of the logits as they came; "processed_logprobs" after penalties,
    temperature (not if greedy) and filters, -inf for tokens that cannot be drawn.

    Bits: SPEC.md, "Sampling". Tokens less likely than 2^-40 of the likeliest are never drawn. NaN logits are never
    chosen while another is above -inf, and make the row's log-probabilities NaN; a row without a logit above -inf
    gives the lowest id of -inf, or 0. No gradient.

    Raises TypeError and NotImplementedError for other types, dtypes and devices, ValueError for shapes and numbers out
    of range; numbers in tensors on a GPU are taken as the nearest in range.
    """
    checks.operand("logits", logits, _DTYPES)
    if logits.ndim != 2 or not 0 < logits.shape[1] <= LONGEST:
        raise ValueError(f"logits: expected shape (B, V) with 0 < V <= {LONGEST}, got {tuple(logits.shape)}")
    if logprobs_mode not in _MODES:
        raise ValueError(f"logprobs_mode: expected one of {', '.join(_MODES)}, got {logprobs_mode!r}")
    if logprobs is not None and not 0 <= logprobs <= logits.shape[1]:
        raise ValueError(f"logprobs: expected 0 to {logits.shape[1]}, the number of tokens, or None, got {logprobs}")
    raw = logits.detach().resolve_neg()
    processed = raw
    penalties = [
        _parameter(name, value, raw, torch.float32, neutral, bounds)
        for name, value, neutral, bounds in (
            ("repetition_penalty", repetition_penalty, 1.0, (0.0, None)),
            ("frequency_penalty", frequency_penalty, 0.0, (None, None)),
            ("presence_penalty", presence_penalty, 0.0, (None, None)),
        )
    ]
    histories = [_history(name, ids, raw) for name, ids in (("prompt", prompt), ("output", output))]
    if any(p is not None for p in penalties) and any(h is not None for h in histories):
        full = [_full(p, raw, neutral) for p, neutral in zip(penalties, (1.0, 0.0, 0.0), strict=True)]
        processed = _call(_penalised_op, _run_penalised, raw, _counts(raw, *histories), *full)
    hot = _full(_parameter("temperature", temperature, raw, torch.float32, None, (0.0, None)), raw, 1.0)
    filters = [
        _parameter("top_k", top_k, raw, torch.int64, 0, (0, None)),
        _parameter("top_p", top_p, raw, torch.float32, 1.0, (0.0, 1.0)),
        _parameter("min_p", min_p, raw, torch.float32, 0.0, (0.0, 1.0)),
    ]
    words = (0, 2**32 - 1)
    keys = [
        _full(_parameter(name, value, raw, torch.int64, None, bounds), raw, 0)
        for name, value, bounds in (
            ("seeds", seeds, (None, None)),
            ("positions", positions, words),
            ("samples", samples, words),
        )
    ]
    tokens, e = _call(_op, _run, processed, hot, *filters, *keys)
    if logprobs is None:
        return Sampled(tokens, None, None, None)
    if logprobs_mode == "processed_logprobs":
        raw = _call(_scaled_op, _run_scaled, processed, hot, e)
    if logprobs == 0:
        chosen = _call(_chosen_op, _run_chosen, raw, tokens[:, None])
        return Sampled(tokens, chosen[:, 0], None, None)
    top = topk(raw, logprobs, 1).indices
    found = _call(_chosen_op, _run_chosen, raw, torch.cat([tokens[:, None], top], 1))
    return Sampled(tokens, found[:, 0], found[:, 1:], top)


def _call(op: Any, run: Any, *args: Any) -> Any:
    """`run`, past torch's dispatcher where nobody listens."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or args[0].is_meta
    return (op if watched else run)(*args)


def _parameter(
    name: str,
    value: Parameter,
    logits: Tensor,
    dtype: torch.dtype,
    neutral: float | None,
    bounds: Sequence[float | None],
) -> Tensor | None:
    """A parameter as (B,) of `dtype`; None where it is not given, or is the number that changes nothing."""
    if value is None:
        return None
    rows = logits.shape[0]
    if isinstance(value, Tensor):
        integral = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if value.is_complex() or (dtype == torch.int64 and not integral):
            raise TypeError(f"{name}: expected a tensor of integers, got {value.dtype}")
        if value.shape not in ((), (rows,)):
            raise ValueError(f"{name}: expected a number or shape ({rows},), got {tuple(value.shape)}")
        if value.device != logits.device:
            raise RuntimeError(f"{name}: on {value.device} but logits is on {logits.device}; move one of them")
        if value.is_cpu and not torch.compiler.is_compiling() and value.numel():
            _check(name, value.min().item(), bounds)
            _check(name, value.max().item(), bounds)
        return value.detach().to(dtype).expand(rows).contiguous()
    number = checks.number(name, value)
    _check(name, number, bounds)
    if dtype == torch.int64:
        if number != int(number):
            raise TypeError(f"{name}: expected an integer, got {value}")
        # Beyond fp64's integers, and seeds may have 64 bits.
        number = (int(value) + 2**63) % 2**64 - 2**63
    if number == neutral:
        return None
    return torch.full((rows,), number, dtype=dtype, device=logits.device)


def _check(name: str, number: float, bounds: Sequence[float | None]) -> None:
    low, high = bounds
    if number != number or (low is not None and number < low) or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"{name}: expected {allowed if low is not None else 'a number'}, got {number}")


def _full(parameter: Tensor | None, logits: Tensor, neutral: float) -> Tensor:
    if parameter is not None:
        return parameter
    dtype = torch.int64 if isinstance(neutral, int) else torch.float32
    return torch.full((logits.shape[0],), neutral, dtype=dtype, device=logits.device)


def _history(name: str, ids: Tensor | None, logits: Tensor) -> Tensor | None:
    if ids is None:
        return None
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name}: expected a tensor of token ids, got {ids.dtype if isinstance(ids, Tensor) else ids}")
    if ids.ndim != 2 or ids.shape[0] != logits.shape[0]:
        raise ValueError(f"{name}: expected shape ({logits.shape[0]}, H), got {tuple(ids.shape)}")
    if ids.device != logits.device:
        raise RuntimeError(f"{name}: on {ids.device} but logits is on {logits.device}; move one of them")
    if ids.is_cpu and ids.numel() and not torch.compiler.is_compiling() and int(ids.max()) >= logits.shape[1]:
        raise ValueError(f"{name}: token {int(ids.max())} of a vocabulary of {logits.shape[1]}")
    return ids.to(torch.int64)


def _counts(logits: Tensor, prompt: Tensor | None, output: Tensor | None) -> Tensor:
    """int32 (B, V): how often each token was put out, plus 2^30 where it is in the prompt."""
    rows, classes = logits.shape
    # What is no token has a column of its own.
    counts = torch.zeros((rows, classes + 1), dtype=torch.int32, device=logits.device)

    def places(ids: Tensor) -> Tensor:
        return torch.where((ids >= 0) & (ids < classes), ids, classes)

    if prompt is not None:
        counts.scatter_(1, places(prompt), PROMPT)
    if output is not None:
        counts.scatter_add_(1, places(output), torch.ones_like(output, dtype=torch.int32))
    return counts[:, :classes].contiguous()
