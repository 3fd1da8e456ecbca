"""Tokens of a language model a second: requests batched by transformers' continuous batching, and one stream."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .measure import Failed, measure
from .registry import Work
from .tensors import COPY, copy_of

STOCK = "torch"
PAGE = 128
STEP = 8  # of a stream, the one that is measured
ROUNDS, REPLAYS = 15, 20
TIMEOUT = 600.0


class Sizes(NamedTuple):
    """requests of `prompt` tokens each, and `new` tokens of an answer."""

    requests: int
    prompt: int
    new: int


def built(shape: str, device: torch.device) -> Any:
    """A Llama of random bf16 weights, a fresh one at each call."""
    from transformers.utils import logging

    from repkernels.llm.models import of_shape

    logging.set_verbosity_error()
    return of_shape(shape, torch.bfloat16, device)[0]


def rows(model: Any, way: str, sizes: Sizes, device: torch.device) -> Iterator[dict[str, Any]]:
    """Rows of one way, a contract or STOCK; what fails says why in its row. The model becomes that way's in place."""
    from repkernels.integrations.transformers import disable, enable

    if way == STOCK:
        disable(model).set_attn_implementation("sdpa")
    else:
        enable(model, way)
    graphs = device.type == "cuda"
    works: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        ("batch", "graph" if graph else "eager", partial(batched, model, sizes, graph, device))
        for graph in ((False, True) if graphs else (False,))
    ]
    stream = stock_stream if way == STOCK else paged_stream
    works.append(("stream", "graph" if graphs else "eager", partial(stream, model, sizes, device)))
    for work, mode, run in works:
        row: dict[str, Any] = {"work": work, "mode": mode, "way": way}
        try:
            row |= run()
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        if graphs:
            torch.cuda.empty_cache()
        yield row


def prompts(model: Any, count: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    size = (count, length)
    found: list[list[int]] = torch.randint(2, model.config.vocab_size, size, generator=generator).tolist()
    return found


def manager_of(model: Any, sizes: Sizes, graph: bool, **more: Any) -> Any:
    """A manager of greedy requests whose pages hold all of them to the end."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    pages = -(-(sizes.prompt + sizes.new + 1) // PAGE)
    config = {
        # The older name where there is no other.
        "page_size" if "page_size" in ContinuousBatchingConfig.__dataclass_fields__ else "block_size": PAGE,
        "num_blocks": sizes.requests * pages + 32, "max_batch_tokens": 8192, "max_blocks_per_request": pages,
        "max_requests_per_batch": sizes.requests, "use_cuda_graph": graph, **more,
    }  # fmt: skip
    generation = GenerationConfig(do_sample=False, max_new_tokens=sizes.new, eos_token_id=-1)
    return model.init_continuous_batching(generation, ContinuousBatchingConfig(**config))


def answered(manager: Any, inputs: list[list[int]], new: int, tag: str) -> float:
    """Seconds until all are answered."""
    start = time.perf_counter()
    for i, tokens in enumerate(inputs):
        manager.add_request(tokens, request_id=f"{tag}{i}", max_new_tokens=new)
    left = len(inputs)
    while left:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError(f"the manager ended: {manager.background_thread_status.fatal_error}")
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(result.error)
            left -= 1
        if time.perf_counter() - start > TIMEOUT:
            raise TimeoutError(f"{left} requests were not answered")
    return time.perf_counter() - start


def batched(model: Any, sizes: Sizes, graph: bool, device: torch.device) -> dict[str, Any]:
    """All requests at once, on a GPU after a round that compiles kernels and makes graphs."""
    manager = manager_of(model, sizes, graph)
    inputs = prompts(model, sizes.requests, sizes.prompt)
    start = time.perf_counter()
    manager.warmup()
    manager.start()
    try:
        if device.type == "cuda":
            answered(manager, inputs, sizes.new, "warm")
        ready = time.perf_counter() - start
        seconds = answered(manager, inputs, sizes.new, "timed")
    finally:
        _end(manager)
    return {
        "tokens_per_second": rounded(sizes.requests * sizes.new / seconds), "seconds": rounded(seconds),
        "first_seconds": rounded(ready),
    }  # fmt: skip


def _end(manager: Any) -> None:
    manager.stop(block=True, timeout=60)
    manager.destroy()


def paged_stream(model: Any, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """A step of one request after its prompt, as continuous batching makes it: the replay of its CUDA graph."""
    graph = device.type == "cuda"
    one = Sizes(1, sizes.prompt, 2 * STEP)
    manager = manager_of(model, one, graph, use_async_batching=False)
    found: list[list[float]] = []
    try:
        manager.batch_processor = manager._create_batch_processor()
        runner, steps = manager.batch_processor.model_runner, iter(range(2 * STEP))
        compute, ios = runner.compute_batch, runner.inputs_and_outputs

        def watched(model: Any, batch_data: Any) -> None:
            start = time.perf_counter()
            compute(model, batch_data)
            seconds = time.perf_counter() - start
            if not ios.use_block_table:
                return
            step = next(steps)
            if graph and step == STEP:
                found.append(replayed(ios.get_graph(), ios.compute_stream))
            elif not graph and step >= STEP:
                found.append([seconds])

        runner.compute_batch = watched
        manager.start()
        answered(manager, prompts(model, 1, one.prompt), one.new, "stream")
    finally:
        _end(manager)
    return of_times([s for some in found for s in some])


def stock_stream(model: Any, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """A step after a prompt with transformers' static cache, its fastest way: the replay of a CUDA graph."""
    from transformers import StaticCache

    # Every step takes a place, replayed ones too.
    cache = StaticCache(config=model.config, max_cache_len=sizes.prompt + ROUNDS * REPLAYS + 8)
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    ids = torch.tensor(prompts(model, 1, sizes.prompt), device=device)
    token, position = (torch.full((1, 1), n, device=device) for n in (5, sizes.prompt))

    def step() -> Tensor:
        logits: Tensor = model(input_ids=token, position_ids=position, use_cache=True, **{name: cache}).logits
        return logits

    with torch.no_grad():
        model(input_ids=ids, use_cache=True, logits_to_keep=1, **{name: cache})
        if device.type != "cuda":
            return of_times([_seconds(step) for _ in range(3)])
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return of_times(replayed(graph, None))


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def replayed(graph: Any, stream: Any) -> list[float]:
    """Seconds of a replay, each the mean of some."""
    found = []
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3 / REPLAYS)
    return found


def of_times(seconds: list[float]) -> dict[str, Any]:
    middle = median(seconds)
    names = ("milliseconds", "least", "most")
    values = (middle, min(seconds), max(seconds))
    return {
        "tokens_per_second": rounded(1 / middle),
        **{name: rounded(1e3 * s) for name, s in zip(names, values, strict=True)},
    }


def weight_bytes(model: Any) -> int:
    """Bytes of the weights that a step reads: all but the embedding's, of which it reads a row unless they are tied."""
    whole = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    apart = embedding.data_ptr() != head.data_ptr()
    return sum(whole.values()) - apart * embedding.numel() * embedding.element_size()


def bytes_per_second(device: torch.device, traffic: int) -> float:
    """Of a copy that reads and writes as many bytes."""
    copy = copy_of(traffic, device)
    work = Work("copy", "copy", lambda: None, [copy], COPY, 0, traffic)
    time = measure(work, device)[COPY]
    if isinstance(time, Failed):
        raise RuntimeError(f"{COPY}: {time.error}")
    return traffic / time.median


def add_ratios(found: list[dict[str, Any]], weights: int, bandwidth: float) -> None:
    """ratio: tokens a second over the stock model's in the same work and mode; of_copy, of a stream: the time that a
    copy takes for as many bytes as the weights have, over the step's."""
    stock = {(r["work"], r["mode"]): r.get("tokens_per_second") for r in found if r["way"] == STOCK}
    for row in found:
        speed, beside = row.get("tokens_per_second"), stock.get((row["work"], row["mode"]))
        if speed and beside:
            row["ratio"] = rounded(speed / beside)
        if speed and row["work"] == "stream":
            row["of_copy"] = rounded(speed * weights / bandwidth)


def rounded(x: float) -> float:
    """Four significant digits."""
    return float(f"{x:.4g}")
