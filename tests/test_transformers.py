"""transformers' models enabled: one prompt, one answer, bit for bit, however it is batched, cut, padded and sampled."""

import copy
import gc
import importlib
import itertools
import json
import pickle
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")

from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: E402
from transformers.generation.continuous_batching import scheduler as schedulers  # noqa: E402
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager  # noqa: E402

import repkernels  # noqa: E402
from bench import llm_cli  # noqa: E402
from repkernels.integrations.transformers import (  # noqa: E402
    FAMILIES,
    Manager,
    UnsupportedModel,
    UnsupportedVersion,
    disable,
    enable,
    versions,
)

pytestmark = pytest.mark.slow


VOCABULARY = 128
WINDOW = {"sliding_window": 8}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """torch's threads cost more than products of this size, where others compute beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _quick_garbage_collection() -> None:
    """A manager that stops collects garbage twice, and transformers' modules are many objects."""
    gc.freeze()


class Answer(NamedTuple):
    tokens: list[int]
    logits: Tensor

    def same_as(self, other: "Answer") -> bool:
        return self.tokens == other.tokens and torch.equal(
            self.logits.view(torch.int32), other.logits.view(torch.int32)
        )


def make(family: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A random model of two layers."""
    prefix = FAMILIES[family]
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    configuration = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    config_class = getattr(configuration, prefix + ("TextConfig" if family == "gemma3" else "Config"))
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(modeling, f"{prefix}ForCausalLM")(config_class(**{**sizes, **options}))
        for p in model.parameters():  # norms' weights too
            torch.nn.init.normal_(p, std=0.2 if p.ndim > 1 else 0.5)
    return model.to(dtype).eval()


@cache
def llama(contract: str, dtype: torch.dtype = torch.float32) -> Any:
    return enable(make("llama", dtype), contract)


def prompt(length: int, number: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * length + number)
    return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()


def dense(model: Any, prompts: list[list[int]], new: int = 3, **options: Any) -> list[Answer]:
    """The answers of `generate` to one batch, padded on the left; n to each prompt with num_return_sequences=n."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new,
        return_dict_in_generate=True,
        output_logits=True,
        **{"do_sample": False, **options},
    )
    return [
        Answer(row[longest:].tolist(), torch.stack([step[i] for step in out.logits]))
        for i, row in enumerate(out.sequences)
    ]


class _Cuts(schedulers.FIFOScheduler):
    """Steps of so many tokens, in turn."""

    cuts: Any = ()

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        return super().schedule_batch(min(token_budget, next(type(self).cuts)), cache_budget)


def manager_of(model: Any, cuts: tuple[int, ...] = (), **config: Any) -> Manager:
    if cuts:
        _Cuts.cuts = itertools.cycle(cuts)
        schedulers.SCHEDULER_MAPPING["test_cuts"] = _Cuts
        config["scheduler_type"] = "test_cuts"
    settings = {"block_size": 16, "num_blocks": 40, "max_batch_tokens": 256, "max_requests_per_batch": 8, **config}
    generation = GenerationConfig(do_sample=False, max_new_tokens=3, eos_token_id=-1)
    return model.init_continuous_batching(generation, ContinuousBatchingConfig(**settings))


class Session:
    """Requests to one manager, with their logits."""

    def __init__(self, model: Any, pad: bool = False, **config: Any) -> None:
        self.manager, self.pad, self.rows = manager_of(model, **config), pad, {}

    def __enter__(self) -> "Session":
        self.manager.on_logits = lambda request, position, row: self.rows.setdefault(request, {}).update(
            {position: row}
        )
        if self.pad:  # as CUDA graphs do
            self.manager.batch_processor = self.manager._create_batch_processor()
            self.manager.batch_processor.model_runner.pad_inputs = True
        self.manager.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.manager.stop(block=True)
        self.manager.destroy()

    def results(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        end = time.monotonic() + 60
        while len(found) < count and time.monotonic() < end:
            result = self.manager.get_result(timeout=0.05)
            if result is not None and result.is_finished():
                found[result.request_id] = result
        assert len(found) == count
        return found

    def answers(self, prompts: list[list[int]], options: list[dict[str, Any]] | None = None) -> list[Answer]:
        ids = [
            self.manager.add_request(p, capture_logits=True, **o)
            for p, o in zip(prompts, options or [{}] * len(prompts), strict=True)
        ]
        children = [
            [i, *(f"{i}__child#{n}" for n in range((o or {}).get("num_return_sequences", 1) - 1))]
            for i, o in zip(ids, options or [{}] * len(prompts), strict=True)
        ]
        flat = [i for group in children for i in group]
        found = self.results(len(flat))
        assert [found[i].error for i in flat] == [None] * len(flat)
        return [
            Answer(
                found[i].generated_tokens, torch.stack([self.rows[i][p] for p in range(len(found[i].generated_tokens))])
            )
            for i in flat
        ]


def batched(model: Any, prompts: list[list[int]], **config: Any) -> list[Answer]:
    with Session(model, **config) as session:
        return session.answers(prompts)


def equal(ours: list[Answer], theirs: list[Answer]) -> bool:
    return len(ours) == len(theirs) and all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))


CASES = {
    "llama": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": WINDOW,
    "gemma": {},
    "gemma2": {**WINDOW, **MIXED, "query_pre_attn_scalar": 16},
    "gemma3": {**WINDOW, **MIXED, "query_pre_attn_scalar": 16},
    "phi": {"qk_layernorm": True},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    "smollm3": {"no_rope_layers": [1, 0]},
    "mixtral": {**EXPERTS, "num_local_experts": 4, "sliding_window": None},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 48},
}


@pytest.mark.parametrize("family", CASES)
def test_families(family: str) -> None:
    """As the stock model but for rounding; a prompt alone, padded, and in chunks in a batch: the same bits."""
    model = make(family, **CASES[family])
    model.set_attn_implementation("eager")
    ids = torch.tensor([prompt(21), prompt(21, 1)])
    with torch.no_grad():
        stock = model(ids).logits
        enable(model, "fixed16" if family in ("mistral", "mixtral") else "ordered")
        bound = 0.02 if family in ("mistral", "mixtral") else 2e-4
        assert (model(ids).logits - stock).abs().max() < bound * stock.abs().max()
    prompts = [prompt(19), prompt(4)]
    alone = [dense(model, [p])[0] for p in prompts]
    assert equal(dense(model, prompts), alone)
    assert equal(batched(model, prompts, max_batch_tokens=7), alone)


@pytest.mark.parametrize("contract", ["fixed16", "ordered"])
def test_batches_change_no_bit(contract: str) -> None:
    model = llama(contract)
    prompts = [prompt(140), prompt(20), prompt(5)]
    state = torch.get_rng_state()
    alone = [dense(model, [p])[0] for p in prompts]
    assert equal(dense(model, prompts), alone)
    assert equal(dense(model, prompts, cache_implementation="static"), alone)
    assert equal(batched(model, prompts, max_blocks_per_request=0), alone)
    assert equal(batched(model, prompts, cuts=(1, 2, 3, 127, 5)), alone)
    assert equal(batched(model, prompts, pad=True, q_padding_interval_size=64), alone)
    with Session(model) as session:
        first = session.answers(prompts)
        again = session.answers([prompts[0], prompts[0][:100] + prompt(9)])  # the pages are there
        assert session.manager._use_prefix_sharing
    assert equal(first, alone)
    assert again[0].same_as(alone[0])
    assert again[1].same_as(dense(model, [prompts[0][:100] + prompt(9)])[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_half_precision() -> None:
    model = llama("fixed16", torch.bfloat16)
    prompts = [prompt(130), prompt(7)]
    alone = [dense(model, [p])[0] for p in prompts]
    assert equal(dense(model, prompts), alone)
    assert equal(batched(model, prompts, cuts=(3, 60)), alone)


SAMPLED = {"do_sample": True, "temperature": 1.3, "top_k": 60, "top_p": 0.95, "seed": 11}
PENALISED = {"do_sample": True, "temperature": 0.9, "repetition_penalty": 1.4, "seed": -5}


def test_sampling_belongs_to_the_request() -> None:
    """The same tokens from `generate` and from batches, whatever the neighbours' parameters; n answers differ."""
    model, state = llama("ordered"), torch.get_rng_state()
    prompts = [prompt(18), prompt(6), prompt(33)]
    options: list[dict[str, Any]] = [{**SAMPLED, "num_return_sequences": 3}, PENALISED, {"temperature": 0}]
    plain = {"top_k": 0}  # transformers' generate has 50 where none is given
    alone = [
        *dense(model, [prompts[0]], 5, **options[0]),
        *dense(model, [prompts[1]], 5, **{**plain, **PENALISED}),
        *dense(model, [prompts[2]], 5),
    ]
    assert len({tuple(a.tokens) for a in alone[:3]}) == 3
    assert equal(dense(model, prompts, 5, **SAMPLED), [dense(model, [p], 5, **SAMPLED)[0] for p in prompts])
    per_prompt = dense(model, prompts, 5, **{**SAMPLED, "seed": [11, 4, 11]})
    assert per_prompt[0].same_as(alone[0])
    assert not per_prompt[1].same_as(dense(model, [prompts[1]], 5, **SAMPLED)[0])
    new = {"max_new_tokens": 5}
    with Session(model) as session:
        mixed = session.answers(prompts, [{**o, **new} for o in options])
        assert equal(session.answers([prompts[1]], [{**PENALISED, **new}]), [alone[3]])
    assert equal(mixed, alone)
    with Session(model, cuts=(2, 9), return_logprobs=True) as session:
        assert equal(session.answers(prompts[:2], [{**SAMPLED, **new}, {**PENALISED, **new}]), [alone[0], alone[3]])
        # transformers holds the last token of a prompt back for its other answers.
        lonely = session.answers([prompt(1)], [{**SAMPLED, **new, "num_return_sequences": 2}])
    assert equal(lonely, dense(model, [prompt(1)], 5, **SAMPLED, num_return_sequences=2))
    config = GenerationConfig(do_sample=True, temperature=1.3, top_k=60, top_p=0.95, max_new_tokens=5, eos_token_id=-1)
    batch = ContinuousBatchingConfig(block_size=16, num_blocks=40, max_batch_tokens=64)
    outputs = model.generate_batch(prompts, config, batch, seed=[11, 4, 11])
    assert [o.generated_tokens for o in outputs.values()] == [a.tokens for a in per_prompt]
    assert torch.equal(torch.get_rng_state(), state)
    repkernels.manual_seed(1)
    drawn = [dense(model, prompts[:1], 5, do_sample=True)[0].tokens for _ in range(2)]
    repkernels.manual_seed(1)
    assert drawn[0] == dense(model, prompts[:1], 5, do_sample=True)[0].tokens != drawn[1]


def test_preempted_requests_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few pages for all: some lose theirs midway, with penalties on what they have generated."""
    model, preempted = llama("ordered"), []
    offload = OffloadingManager.offload_requests

    def counted(self: Any, *args: Any) -> Any:
        preempted.append(offload(self, *args))
        return preempted[-1]

    monkeypatch.setattr(OffloadingManager, "offload_requests", counted)
    prompts, new = [prompt(60), prompt(46), prompt(44)], {"max_new_tokens": 20}
    alone = [dense(model, [p], 20, top_k=0, **PENALISED)[0] for p in prompts]
    with Session(model, num_blocks=13, safety_margin=0.0) as session:
        assert equal(session.answers(prompts, [{**PENALISED, **new}] * 3), alone)
    assert sum(preempted) > 0


def test_a_cancelled_request_and_bad_ones_leave_the_others_alone() -> None:
    model = llama("ordered")
    alone = dense(model, [prompt(20)])[0]
    with Session(model) as session:
        gone = session.manager.add_request(prompt(100), max_new_tokens=300)
        kept = session.manager.add_request(prompt(20), capture_logits=True)
        with pytest.raises(ValueError, match="is running"):
            session.manager.add_request(prompt(5), request_id=gone)
        session.manager.cancel_request(gone)
        for wrong in ([], [VOCABULARY], [-1], prompt(20) * 30):
            with pytest.raises(ValueError, match="input_ids"):
                session.manager.add_request(wrong)
        for wrong_options, error in (
            ({"temperature": -1.0}, ValueError),
            ({"top_k": 1.5}, TypeError),
            ({"beams": 2}, TypeError),
            ({"max_new_tokens": 0}, ValueError),
            ({"num_return_sequences": 0}, ValueError),
            ({"request_id": "a__child#0"}, ValueError),
        ):
            with pytest.raises(error, match=next(iter(wrong_options))):
                session.manager.add_request(prompt(5), **wrong_options)
        found = session.results(1)[kept]
        assert found.generated_tokens == alone.tokens
        assert torch.equal(torch.stack([session.rows[kept][p] for p in range(3)]), alone.logits)
    with Session(model, num_blocks=8) as session:
        session.results(0)
        session.manager.add_request(prompt(4), max_new_tokens=1)
        session.results(1)
        with pytest.raises(ValueError, match="the cache holds 128"):
            session.manager.add_request(prompt(100), max_new_tokens=50)
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        model.generate_batch([prompt(3), []])


def test_managers_are_kept() -> None:
    model = llama("ordered")
    config = ContinuousBatchingConfig(block_size=16, num_blocks=40, max_batch_tokens=64)
    generation = GenerationConfig(do_sample=False, max_new_tokens=3, eos_token_id=-1)
    first = model.generate_batch([prompt(9)], generation, config, persistent_manager=True)
    kept = model._cached_continuous_batching_manager
    second = model.generate_batch([prompt(9)], generation, config, persistent_manager=True)
    assert isinstance(kept, Manager)
    assert model._cached_continuous_batching_manager is kept
    tokens = [o.generated_tokens for out in (first, second) for o in out.values()]
    assert tokens[0] == tokens[1] == dense(model, [prompt(9)])[0].tokens
    model.destroy_cached_continuous_batching_manager()


def test_disable_restores_the_stock_model() -> None:
    model = make("gemma3", **CASES["gemma3"])
    ids, classes = torch.tensor([prompt(12)]), [type(m) for m in model.modules()]
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    implementation = model.config._attn_implementation
    with torch.no_grad():
        stock = model(ids).logits
        enabled = enable(model, "ordered")(ids).logits
        assert enable(model, "fixed24") is model
        assert all(m.contract == ("fixed24", "fixed24") for m in model.modules() if hasattr(m, "contract"))
        assert not torch.equal(model(ids).logits, enabled)
        enable(model, "ordered", contracts={"lm_head": "fixed32"}, prepare=False)
        assert model.lm_head.contract == ("fixed32", "fixed32")
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(again(ids).logits, model(ids).logits)
        assert type(disable(model)(ids).logits) is Tensor
        assert torch.equal(model(ids).logits, stock)
    assert [type(m) for m in model.modules()] == classes
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert not any("contract" in vars(m) for m in model.modules())
    assert disable(model) is model


def test_prepared_weights_change_no_bit() -> None:
    """Kept digits and projections put together, also after weights have changed or moved to another type."""
    ids = torch.tensor([prompt(15)])
    options: dict[str, Any] = {"attention_bias": True}
    models = [enable(make("llama", **options), "fixed16", prepare=p) for p in (True, "scales", False)]
    with torch.no_grad():
        for change in (lambda m: None, _shrink, lambda m: m.to(torch.bfloat16), lambda m: enable(m, "fixed24")):
            for model in models:
                change(model)
            found = [model(ids).logits for model in models]
            assert torch.equal(found[0], found[2])
            assert torch.equal(found[1], found[2])
    assert type(models[0].model.layers[0].self_attn.k_proj).__name__ == "SharedLinear"


def _shrink(model: Any) -> None:
    model.model.layers[1].self_attn.k_proj.weight.mul_(0.3)
    model.model.layers[0].mlp.up_proj.weight.copy_(model.model.layers[1].mlp.gate_proj.weight)
    model.model.layers[0].self_attn.v_proj.bias.fill_(0.25)


def _shifted(module: Any, inputs: Any, output: Tensor) -> None:
    output.detach().add_(1)


def test_sums_with_their_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """In inference a residual's sum and the norm after it are one launch: the same bits, also where hooks interfere."""
    model, ids, fused = make("gemma", torch.bfloat16), torch.tensor([prompt(9), prompt(9, 1)]), []
    enable(model, "ordered")
    add = repkernels.nn.functional.add_rms_norm
    monkeypatch.setattr(repkernels.nn.functional, "add_rms_norm", lambda *a: fused.append(a) or add(*a))
    seen: list[list[Tensor]] = []
    model.model.norm.register_forward_hook(lambda module, inputs, output: seen.append([*inputs, output]))
    model.model.layers[1].post_attention_layernorm.register_forward_pre_hook(lambda m, x: seen.append([*x]))
    for interfere in (False, True):
        if interfere:  # in place, after the next norm has been computed
            model.model.layers[0].register_forward_hook(_shifted)
        seen.clear()
        apart = model(ids, output_hidden_states=True)
        assert not fused
        with torch.no_grad():
            joined = model(ids, output_hidden_states=True)
        assert len(fused) == 4
        with torch.inference_mode():
            assert torch.equal(model(ids).logits, apart.logits)
        pairs = [(apart.logits, joined.logits), *zip(apart.hidden_states, joined.hidden_states, strict=True)]
        pairs += [(a, b) for xs, ys in zip(seen[:2], seen[2:4], strict=True) for a, b in zip(xs, ys, strict=True)]
        assert all(torch.equal(a, b) for a, b in pairs)
        fused.clear()


def test_training() -> None:
    """Loss and gradients are close to the stock model's, and the same again; padding changes no gradient."""
    ids = torch.tensor([prompt(17), prompt(17, 1)])
    results = []
    for contract in (None, "ordered", "ordered"):
        model = make("qwen3").train()
        if contract is not None:
            enable(model, contract)
        loss = model(ids, labels=ids).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
    for stock, ours, again in zip(*results, strict=True):
        assert (stock - ours).abs().max() < 1e-4 * max(1.0, stock.abs().max().item())
        assert torch.equal(ours, again)


def test_refusals_name_all_reasons() -> None:
    with pytest.raises(TypeError, match="PreTrainedModel, got Linear"):
        enable(torch.nn.Linear(2, 2))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50))
    with pytest.raises(UnsupportedModel, match="Conv1D") as caught:
        enable(gpt2)
    assert {"", "transformer", "transformer.h.0.attn.c_attn"} <= {*caught.value.reasons, ""}
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = make("llama", rope_parameters=dynamic, hidden_act="quick_gelu")
    model.lm_head = torch.nn.Bilinear(2, 2, 2)
    model.model.layers[0].mlp.down_proj.weight.data = model.model.layers[0].mlp.down_proj.weight.data.double()
    before = [type(m) for m in model.modules()]
    with pytest.raises(UnsupportedModel) as caught:
        enable(model, "ordered")
    text = str(caught.value)
    for reason in ("longest sequence of the batch", "QuickGELUActivation", "Bilinear", "float64", "lm_head"):
        assert reason in text
    assert [type(m) for m in model.modules()] == before
    for options, error, reason in (
        ({"contract": "native"}, ValueError, "native"),
        ({"contract": "fixed9"}, ValueError, "fixed9"),
        ({"contracts": {"nothing": "ordered"}}, ValueError, "nothing"),
        ({"prepare": "all"}, ValueError, "prepare"),
    ):
        with pytest.raises(error, match=reason):
            enable(make("llama"), **options)
    model = llama("ordered")
    ids = torch.tensor([prompt(4)])
    for options, reason in (
        ({"num_beams": 2}, "num_beams"),
        ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGram"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ):
        with pytest.raises(NotImplementedError, match=reason):
            model.generate(ids, max_new_tokens=1, **options)
    with pytest.raises(NotImplementedError, match="no_repeat_ngram_size"):
        model.init_continuous_batching(GenerationConfig(no_repeat_ngram_size=2))


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.check.cache_clear()
    for version in ("4.57.1", "5.16.3", "6.0.0"):
        monkeypatch.setattr(transformers, "__version__", version)
        with pytest.raises(UnsupportedVersion, match=r"5\.17"):
            enable(make("llama"))
    monkeypatch.undo()
    monkeypatch.setattr(versions, "HOOKS", (*versions.HOOKS, versions.Hook("transformers", "no_such_thing")))
    with pytest.raises(UnsupportedVersion, match="no_such_thing"):
        versions.check()
    versions.check.cache_clear()


def test_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "llm.json"
    done = CliRunner().invoke(llm_cli.app, ["--device", "cpu", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert [(r["work"], r["way"]) for r in found["rows"]] == [
        (w, y) for y in ("torch", "fixed16") for w in ("batch", "stream")
    ]
    assert all(r["tokens_per_second"] > 0 and r["ratio"] > 0 for r in found["rows"])
    assert all(r["of_copy"] > 0 for r in found["rows"] if r["work"] == "stream")
    # 2 layers of 64 x (64 + 2 x 32 + 64 + 3 x 96) weights and two norms, the last norm, the head of 320 rows.
    assert found["weight_bytes"] == 2 * (2 * (64 * (64 + 2 * 32 + 64 + 3 * 96) + 128) + 64 + 320 * 64)
    for bad in (["--shape", "7b"], ["--contracts", "fixed9"]):
        assert CliRunner().invoke(llm_cli.app, bad).exit_code == 2
