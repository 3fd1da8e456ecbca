"""Requests of OpenAI's form, checked: what can't be honoured is refused by its name, nothing is silently ignored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repkernels.llm.errors import RequestError

Prompt = list[int]
SEEDS = 1 << 63
MOST_ANSWERS, MOST_STOPS, MOST_LOGPROBS = 128, 4, 20
_SAMPLING = {
    "temperature": (0.0, 3.4e38),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (2.0**-126, 3.4e38),
}
_COMMON = {*_SAMPLING, "top_k", "seed", "n", "stop", "max_tokens", "stream", "stream_options", "model", "logprobs",
           "ignore_eos", "repkernels"}  # fmt: skip
_CHAT = {*_COMMON, "messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
_COMPLETION = {*_COMMON, "prompt"}
# They say nothing about the answer.
_HINTS = {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
# Fields of OpenAI's that are accepted with these values only, which ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "echo": (False,), "function_call": ("none",), "functions": ([],),
    "logit_bias": ({},), "modalities": (["text"],), "moderation": (), "parallel_tool_calls": (True, False),
    "prediction": (), "reasoning_effort": (), "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"), "store": (False,), "suffix": (), "tool_choice": ("none", "auto"),
    "tools": ([],), "verbosity": (), "web_search_options": (),
}  # fmt: skip
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Request:
    """What is asked of the model.

    prompts: token ids; each gets n answers. limit: the most new tokens, None for as many as there is room for.
    sampling: parameters by the names of `integrations.transformers.Parameters`, those that were given.
    top: log-probabilities of the token and of so many others; None for none.
    recorded: whether the answer says with what bits it was made.
    """

    prompts: list[Prompt]
    limit: int | None = None
    n: int = 1
    stops: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    top: int | None = None
    stream: bool = False
    usage: bool = False
    ignore_eos: bool = False
    recorded: bool = False
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)


def chat(body: Any, tokenizer: Any) -> Request:
    """A request to /v1/chat/completions. Raises RequestError."""
    _known(body, _CHAT)
    limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    if len(limits) == 2:
        raise RequestError("max_tokens and max_completion_tokens: give one of them", "max_tokens")
    top = _integer(body, "top_logprobs", 0, MOST_LOGPROBS)
    wanted = _boolean(body, "logprobs")
    if top is not None and not wanted:
        raise RequestError("top_logprobs: needs logprobs to be true", "top_logprobs")
    prompt = _chat_prompt(body, tokenizer)
    return _request(body, [prompt], limits[0] if limits else "max_tokens", (top or 0) if wanted else None)


def completion(body: Any, tokenizer: Any) -> Request:
    """A request to /v1/completions. Raises RequestError."""
    _known(body, _COMPLETION)
    prompt = body.get("prompt")
    given = prompt if isinstance(prompt, list) and not _are(prompt, int) else [prompt]
    if not given:
        raise RequestError("prompt: empty; give at least one", "prompt")
    return _request(body, [_ids(one, tokenizer) for one in given], "max_tokens",
                    _integer(body, "logprobs", 0, MOST_LOGPROBS))  # fmt: skip


def _request(body: Any, prompts: list[Prompt], limit: str, top: int | None) -> Request:
    sampling = {name: _number(body, name, *bounds) for name, bounds in _SAMPLING.items()}
    top_k = _integer(body, "top_k", -1, (1 << 31) - 1)
    # Elsewhere -1 is what keeps all tokens.
    sampling["top_k"] = None if top_k is None else max(0, top_k)
    stream = _boolean(body, "stream")
    options = _options(body, "stream_options", ("include_usage", "include_obfuscation"))
    if options and not stream:
        raise RequestError("stream_options: only with stream", "stream_options")
    recorded = _options(body, "repkernels", ("digest",))
    for options_of, allowed in ((options, "stream_options"), (recorded, "repkernels")):
        for name in options_of:
            _boolean(options_of, name, f"{allowed}.{name}")
    if options.get("include_obfuscation"):
        raise RequestError("stream_options.include_obfuscation: not supported", "stream_options")
    return Request(
        prompts=prompts,
        limit=_integer(body, limit, 1, 1 << 31),
        n=_integer(body, "n", 1, MOST_ANSWERS) or 1,
        stops=_stops(body.get("stop")),
        sampling={name: value for name, value in sampling.items() if value is not None},
        seed=_integer(body, "seed", -SEEDS, SEEDS - 1),
        top=top,
        stream=stream,
        usage=bool(options.get("include_usage")),
        ignore_eos=_boolean(body, "ignore_eos"),
        recorded=bool(recorded.get("digest")),
        body=body,
    )


def _known(body: Any, names: set[str]) -> None:
    if not isinstance(body, dict):
        raise RequestError(f"the body: expected a JSON object, got {_kind(body)}")
    for name, value in body.items():
        if name in names or name in _HINTS or value is None:
            continue
        if name not in _NEUTRAL:
            raise RequestError(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")
        if not any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL[name]):
            raise RequestError(f"{name}: not supported by this server", name, "unsupported_parameter")


def _chat_prompt(body: Any, tokenizer: Any) -> Prompt:
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("messages: the model has no chat template; use /v1/completions", "messages")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one message", "messages")
    options = body.get("chat_template_kwargs") or {}
    taken = {"conversation", "tokenize", "return_dict", "return_tensors", "add_generation_prompt", "chat_template"}
    if not isinstance(options, dict) or taken & set(options):
        raise RequestError("chat_template_kwargs: expected an object of the template's own", "chat_template_kwargs")
    try:
        text = tokenizer.apply_chat_template(
            [_message(m, i) for i, m in enumerate(messages)], tokenize=False, add_generation_prompt=True, **options
        )
    except RequestError:
        raise
    except Exception as error:  # whatever the template raises
        raise RequestError(f"messages: the model's chat template refused them: {error}", "messages") from error
    ids: Prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    return _not_empty(ids, "messages")


def _message(message: Any, number: int) -> dict[str, str]:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise RequestError(f"{where}: expected an object, got {_kind(message)}", where)
    others = sorted(k for k, v in message.items() if k not in ("role", "content") and v not in (None, []))
    if others:
        raise RequestError(f"{where}.{others[0]}: not supported by this server", f"{where}.{others[0]}")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {role!r}", f"{where}.role")
    if isinstance(content, list):
        if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
            raise RequestError(f"{where}.content: only parts of type text are supported", f"{where}.content")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"{where}.content: expected a string or parts, got {_kind(content)}", f"{where}.content")
    _unicode(content, f"{where}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _ids(prompt: Any, tokenizer: Any) -> Prompt:
    if isinstance(prompt, str):
        _unicode(prompt, "prompt")
        return _not_empty(list(tokenizer(prompt)["input_ids"]), "prompt")
    if isinstance(prompt, list) and _are(prompt, int):
        return _not_empty(prompt, "prompt")
    raise RequestError(f"prompt: expected a string or token ids, or a list of these, got {_kind(prompt)}", "prompt")


def _unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{param}: half of a surrogate pair at {error.start}", param) from None


def _not_empty(ids: Prompt, param: str) -> Prompt:
    if not ids:
        raise RequestError(f"{param}: empty; give at least one token", param)
    return ids


def _stops(stop: Any) -> tuple[str, ...]:
    found = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(found, list) or (found and not _are(found, str)) or "" in found or len(found) > MOST_STOPS:
        raise RequestError(f"stop: expected a string or up to {MOST_STOPS}, none of them empty", "stop")
    return tuple(found)


def _options(body: Any, name: str, allowed: Sequence[str]) -> dict[str, Any]:
    found = body.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict) or set(found) - set(allowed):
        raise RequestError(f"{name}: expected an object of {', '.join(allowed)}, got {found!r}", name)
    return {key: value for key, value in found.items() if value is not None}


def _boolean(body: Any, name: str, param: str | None = None) -> bool:
    return bool(_typed(body, name, "true or false", lambda v: isinstance(v, bool), param))


def _integer(body: Any, name: str, low: int, high: int) -> int | None:
    value: int | None = _typed(body, name, "an integer", lambda v: isinstance(v, int) and not isinstance(v, bool))
    return _bounded(name, value, low, high)


def _number(body: Any, name: str, low: float, high: float) -> float | None:
    value = _typed(body, name, "a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool))
    return _bounded(name, None if value is None else float(value), low, high)


def _typed(body: Any, name: str, what: str, right: Callable[[Any], bool], param: str | None = None) -> Any:
    value = body.get(name)
    if value is not None and not right(value):
        raise RequestError(f"{param or name}: expected {what}, got {value!r}", param or name)
    return value


def _bounded(name: str, value: Any, low: float, high: float) -> Any:
    if value is not None and not low <= value <= high:
        raise RequestError(f"{name}: expected {low:.6g} to {high:.6g}, got {value}", name)
    return value


def _are(values: list[Any], kind: type) -> bool:
    return bool(values) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__}"
