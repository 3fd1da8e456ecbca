"""What of transformers is used here beside its public interface, checked before anything changes."""

import importlib
import inspect
from functools import cache
from typing import NamedTuple

import transformers

TESTED = ((5, 17), (6, 0))


class Hook(NamedTuple):
    """Something private: where it is, and parameters it must have."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()


_BATCHING = "transformers.generation.continuous_batching"
HOOKS = (
    Hook("transformers.masking_utils", "causal_mask_function"),
    Hook("transformers.masking_utils", "sdpa_mask", ("batch_size", "q_length", "kv_length", "mask_function")),
    Hook("transformers.masking_utils", "sliding_window_causal_mask_function", ("sliding_window",)),
    Hook(
        "transformers.generation.utils",
        "GenerationMixin._sample",
        ("input_ids", "logits_processor", "stopping_criteria", "generation_config"),
    ),
    Hook(
        "transformers.generation.utils",
        "GenerationMixin._valid_auto_compile_criteria",
        ("model_kwargs", "generation_config"),
    ),
    Hook(
        f"{_BATCHING}.continuous_api",
        "ContinuousBatchingManager.__init__",
        ("model", "generation_config", "continuous_batching_config", "workload_hints"),
    ),
    Hook(f"{_BATCHING}.continuous_api", "ContinuousBatchingManager._create_batch_processor"),
    Hook(f"{_BATCHING}.continuous_api", "ContinuousBatchingManager.switch_to_cb_friendly_attn", ("model",)),
    Hook(f"{_BATCHING}.continuous_api", "ContinuousMixin.init_continuous_batching", ("generation_config",)),
    Hook(f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor.update_batch"),
    Hook(f"{_BATCHING}.initialization", "resolve_using_hints", ("cb_config", "workload_hints")),
    Hook(f"{_BATCHING}.initialization", "resolve_without_hints", ("cb_config",)),
    Hook(f"{_BATCHING}.model_runner", "ModelRunner._sample", ("scores", "output_ids")),
    Hook(f"{_BATCHING}.model_runner", "ModelRunner.compute_batch", ("model", "batch_data")),
    Hook(
        f"{_BATCHING}.cb_logits_processors",
        "ContinuousBatchingLogitsProcessorList.prepare_tensor_args",
        ("requests_in_batch", "arg_storage"),
    ),
    Hook(f"{_BATCHING}.scheduler", "Scheduler._schedule_request", ("state", "request_tokens", "token_budget")),
    Hook(f"{_BATCHING}.requests", "RequestState.create_equivalent_initial_request"),
    Hook(f"{_BATCHING}.requests", "RequestState", ("request_id", "initial_tokens", "num_children")),
)


class UnsupportedVersion(ImportError):
    """The installed transformers is not one that this integration knows."""


@cache
def check() -> None:
    """Raises UnsupportedVersion, naming all that is missing, where the installed transformers is not supported."""
    version = transformers.__version__
    low, high = (".".join(map(str, v)) for v in TESTED)
    found = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])
    if not TESTED[0] <= found < TESTED[1]:
        raise UnsupportedVersion(
            f"transformers {version}: this integration is for versions from {low} up to, and without, {high}; "
            f"pip install 'transformers>={low},<{high}'"
        )
    missing = [reason for hook in HOOKS if (reason := _missing(hook)) is not None]
    if missing:
        raise UnsupportedVersion(
            f"transformers {version} has changed where this integration reaches into it:\n"
            + "\n".join(f"  {reason}" for reason in missing)
            + f"\nuse a version that it was tested with, such as transformers=={low}.0"
        )


def _missing(hook: Hook) -> str | None:
    try:
        found = importlib.import_module(hook.module)
        for part in hook.name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        return f"{hook.module}.{hook.name}: {error}"
    if not hook.parameters:
        return None
    parameters = inspect.signature(found).parameters  # type: ignore[arg-type]
    lacking = [name for name in hook.parameters if name not in parameters]
    return f"{hook.module}.{hook.name}: no parameter {', '.join(lacking)}" if lacking else None


def at_least(major: int, minor: int) -> bool:
    """Whether the installed transformers is at least this one."""
    found = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in transformers.__version__.split(".")[:2])
    return found >= (major, minor)
