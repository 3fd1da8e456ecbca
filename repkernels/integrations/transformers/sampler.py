"""The end of a step of continuous batching: tokens sampled by each request's own parameters, logits handed out.

All of it is on the device and in static memory, so that a CUDA graph can hold it. What no request has asked for yet is
not in the step; when one does, the graphs are made anew.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers.utils import logging

from repkernels.integrations.transformers.history import History
from repkernels.integrations.transformers.requests import Requests, Row, _options
from repkernels.sampling import sample

OnLogits: TypeAlias = Callable[[str, int, Tensor], None]
logger = logging.get_logger("ContinuousBatchingLogger")


class Sampler:
    """Takes the place of `ModelRunner._sample`, and of what `compute_batch` does around it."""

    def __init__(self, requests: Requests, on_logits: OnLogits | None) -> None:
        self.requests, self.on_logits = requests, on_logits
        self.history: History | None = None
        self.filtered = False
        self.captured: dict[int, Tensor] | None = None
        requests.before_step = self._before_step

    def install(self, processor: Any, model: Any) -> None:
        """For a new batch processor, whose device and sizes hold until the next one."""
        runner = processor.model_runner
        self.ios, self.runner = processor.inputs_and_outputs, runner
        self.device, self.return_logprobs = processor.model_device, runner.return_logprobs
        self.most = processor.cb_config.max_requests_per_batch
        self.vocabulary = model.config.get_text_config().vocab_size
        self.history, self.captured, self.filtered = None, None, False
        self._compute = runner.compute_batch
        runner._sample, runner.compute_batch = self._sample, self._compute_batch

    def _before_step(self, rows: Sequence[Row]) -> list[int]:
        chosen = [_options(row.state, self.requests.default).parameters for row in rows]
        penalised = [p.penalised for p in chosen]
        changed = False
        if not self.filtered and any(p.filtered for p in chosen):
            self.filtered = changed = True
        if self.history is None and any(penalised):
            self.history = History(self.most, self.vocabulary, self.device, self.ios.compute_stream)
            changed = True
        if self.captured is None and self.on_logits is not None and any(row.capture for row in rows):
            self.captured, changed = {}, True
        if changed:
            self._forget_graphs()
        if self.history is None:
            return [-1] * len(rows)
        found = iter(self.history.slots_of([row for row, p in zip(rows, penalised, strict=True) if p]))
        return [next(found) if p else -1 for p in penalised]

    def _forget_graphs(self) -> None:
        if self.ios.compute_stream is not None:
            self.ios.compute_stream.synchronize()
        pairs = getattr(self.ios, "io_pairs", None)
        for io in [self.ios] if pairs is None else [pair.device_io for pair in pairs]:
            io.graphs = type(io.graphs)()

    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        raw = scores[0]
        count = raw.shape[0]
        a = self.requests.of(count)
        processed = raw
        if self.history is not None:
            counts = self.history.of(a.slots)
            processed = torch.ops.repkernels.penalised(raw, counts, a.repetition, a.frequency, a.presence)
        found = sample(
            processed,
            temperature=a.temperature,
            top_k=a.top_k if self.filtered else None,
            top_p=a.top_p if self.filtered else None,
            min_p=a.min_p if self.filtered else None,
            seeds=a.seeds,
            positions=a.positions,
            samples=a.samples,
            logprobs=0 if self.return_logprobs and self.history is None else None,
        )
        if self.history is not None:
            self.history.add(a.slots, found.tokens)
        output_ids[0, :count].copy_(found.tokens)
        if self.return_logprobs:
            logprobs = found.logprobs
            if logprobs is None:
                logprobs = torch.ops.repkernels.log_probabilities(raw, found.tokens[:, None])[:, 0]
            output_ids[1, :count].copy_(logprobs.view(torch.int32))
        if self.captured is not None:
            self.captured[output_ids.data_ptr()][:count].copy_(raw)

    def _compute_batch(self, model: Any, batch_data: Any) -> None:
        rows, captured = self.requests.rows, None
        if self.captured is not None:
            output_ids = self.ios.get_cb_kwargs()[2]
            captured = self.captured.get(output_ids.data_ptr())
            if captured is None:
                captured = torch.empty((self.most, self.vocabulary), dtype=torch.float32, device=self.device)
                self.captured[output_ids.data_ptr()] = captured
        self._compute(model, batch_data)
        if captured is not None and self.on_logits is not None:
            self._hand_out(captured, [(i, row) for i, row in enumerate(rows) if row.capture])

    def _hand_out(self, captured: Tensor, wanted: list[tuple[int, Row]]) -> None:
        if not wanted or self.on_logits is None:
            return
        with torch.cuda.stream(self.ios.compute_stream):
            logits = captured[torch.tensor([i for i, _ in wanted], device=captured.device)].cpu()
        for (_, row), one in zip(wanted, logits, strict=True):
            try:
                self.on_logits(row.request_id, row.position, one)
            except Exception:
                logger.exception("on_logits raised for request %s", row.request_id)
