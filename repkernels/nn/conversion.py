"""`repkernels.convert`: a torch model's modules become this library's, in place.

A module changes its class and nothing else, so parameters, buffers, hooks, attributes and references to it stay.
Whether a module can be converted is judged from its class: `judge` says what becomes of one, `convert` of a model.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn.utils import parametrize

from repkernels.contract import Contract, ContractLike, as_pair

# They compute nothing, or only move elements, in both directions.
_EXACT = (
    "ChannelShuffle", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Container", "Flatten", "Identity",
    "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "Sequential",
    "Unflatten", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
)  # fmt: skip
# What computes in them is their children, but for additions of two tensors.
_OF_CHILDREN = (
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
)  # fmt: skip
_HINTS = {
    "OptimizedModule": "it is compiled already; convert the model first, then torch.compile it",
    "DataParallel": "convert the module inside of it",
    "DistributedDataParallel": "it adds gradients in an order of its own; convert the module inside of it",
    "SyncBatchNorm": "it adds statistics across processes in an order of its own",
}
# Methods of a torch module that a subclass may have its own of: they do not compute what the module is for.
_HARMLESS = {
    "__init__", "__setattr__", "__setstate__", "_load_from_state_dict", "_reset_parameters", "extra_repr",
    "flatten_parameters", "from_pretrained", "reset_parameters",
}  # fmt: skip


class UnsupportedModules(NotImplementedError):
    """What `convert` raises for a model that it leaves unchanged. reasons: why, by the path of each such module."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        lines = [f"  {path or '(the model)'}: {reason}" for path, reason in self.reasons.items()]
        many = f"{len(lines)} modules" if len(lines) > 1 else "1 module"
        return "\n".join(
            [
                f"model: {many} cannot be made reproducible, so nothing was changed:",
                *lines,
                f"name in allow= what is to stay as it is: allow={tuple(self.reasons)!r}; repkernels.reproducible() "
                "can take care of its operations when the model runs",
            ]
        )


def convert(
    model: torch.nn.Module,
    contract: ContractLike | None = None,
    *,
    contracts: Mapping[str, ContractLike | None] | None = None,
    allow: str | Iterable[str] = (),
) -> Any:
    """Makes every supported module of `model` its `repkernels.nn` counterpart, in place, and returns `model`.

    Modules change their class: they stay the same objects with the same parameters, buffers, state_dict keys, hooks,
    tied weights and training flags, and are still instances of torch's classes. Copies, pickles, torch.save, .to() and
    an optimizer made before go on working. Weight and spectral norm, both of torch's kinds, are converted too.
    Initial values stay, and later calls of reset_parameters draw from `repkernels.random`.

    contract: what every module that contracts follows from now on; None, whatever is in force when it runs.
    contracts: contracts by name pattern, such as {"layer4.*": "fixed32", "fc": "ordered"}, in `fnmatch`'s language,
        matched with a module's path ("" is the model) and the paths of the modules around it; the last one that matches
        wins over the others and over `contract`.
    allow: patterns of the paths of modules that may stay as they are, though their bits may differ between devices.

    A module with arithmetic of its own and no counterpart raises; so does a subclass of a torch module that overrides
    what computes, since its parent's rule says nothing about it. Modules of other classes are containers here: their
    children are converted, and what their own forward computes (functional calls, operators) is not looked at:
    `repkernels.reproducible()` takes care of that, and `repkernels.audit` finds it.
    Convert before torch.compile, DistributedDataParallel and the like wrap the model.

    Raises, with nothing changed: UnsupportedModules (a NotImplementedError) with all reasons; TypeError for what is no
    module; ValueError for an unknown contract, for a pattern of `contracts` that no contracting module matches or of
        `allow` that none does, and for
    a module of several names whose patterns ask for different contracts.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    everywhere = None if contract is None else as_pair(contract)
    named = {
        pattern: None if each is None else as_pair(each, f"contracts[{pattern!r}]")
        for pattern, each in (contracts or {}).items()
    }
    allowed = (allow,) if isinstance(allow, str) else tuple(allow)
    paths: dict[torch.nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    for pattern in allowed:
        if not any(_matches(pattern, path) for names in paths.values() for path in names):
            raise ValueError(f"allow: no module has a name like {pattern!r}")

    reasons: dict[str, str] = {}
    classes: dict[torch.nn.Module, type] = {}
    for module, names in paths.items():
        if any(_matches(pattern, path) for pattern in allowed for path in names):
            continue
        found = judge(module)
        if isinstance(found, str):
            reasons[names[0]] = f"{_name(type(module))}: {found}"
        elif found is not None:
            classes[module] = found
    if reasons:
        raise UnsupportedModules(reasons)

    pairs = _chosen({m: paths[m] for m, c in classes.items() if hasattr(c, "contract")}, everywhere, named)
    for module, new in classes.items():
        if type(module) is not new:
            module.__class__ = new
        for hook in module._forward_pre_hooks.values():
            ours = _hooks().get(type(hook))
            if ours is not None:
                hook.__class__ = ours
        if module in pairs:
            module.contract = pairs[module]  # type: ignore[assignment]
    return model


def judge(module: torch.nn.Module) -> type | str | None:
    """The class that `module` is to have; why it can't have one; or None for containers and modules of a user's own."""
    cls = type(module)
    plain: Any = cls.__bases__[0] if parametrize.is_parametrized(module) else cls
    base = next(k for k in plain.__mro__ if k.__module__.partition(".")[0] in ("torch", "repkernels"))
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by torch.jit; convert the model it was made of"
    if base is torch.nn.Module or (base.__module__ == torch.fx.graph_module.__name__):
        return None
    if base.__module__.startswith("repkernels."):
        ours = base
    elif base in counterparts():
        ours = counterparts()[base]
    elif base.__name__ in _EXACT or base is parametrize.ParametrizationList:
        return None
    elif issubclass(base, torch.nn.modules.lazy.LazyModuleMixin):
        return "it has no parameters yet; give the model one batch first"
    else:
        return _HINTS.get(base.__name__, "it has no counterpart in repkernels.nn")
    overridden = _overridden(plain, base) + ["forward"] * ("forward" in vars(module))
    if overridden and ours is base:
        return None
    if overridden and base.__name__ not in _OF_CHILDREN:
        return f"it has its own {' and '.join(overridden)} in place of {base.__name__}'s"
    refusal = getattr(ours, "_refusal", None)
    if refusal is not None and (reason := refusal(module)) is not None:
        return str(reason)
    new = ours if plain is base else plain if issubclass(plain, ours) else _between(plain, ours)
    return new if plain is cls else _parametrized(cls, new)


def _overridden(plain: type, base: type) -> list[str]:
    """The methods that classes below `base` define anew and that take part in what it computes."""
    parents = [k for k in base.__mro__ if k not in (torch.nn.Module, object) and not issubclass(torch.nn.Module, k)]
    of_base = {"__call__", "forward", *(name for k in parents for name, f in vars(k).items() if inspect.isroutine(f))}
    below = plain.__mro__[: plain.__mro__.index(base)]
    own = {name for k in below for name, f in vars(k).items() if inspect.isroutine(f)}
    return sorted((own & of_base) - _HARMLESS)


@functools.cache
def _between(plain: Any, ours: Any) -> type:
    """A user's subclass of a torch class as one of its counterpart: the user's methods win, and it can be pickled."""

    def reduce(self: Any, protocol: int) -> Any:
        return _bare, (plain, ours), self.__getstate__()

    body = {"__module__": plain.__module__, "__doc__": plain.__doc__, "__reduce_ex__": reduce}
    bases: tuple[type, ...] = (plain, ours)
    return type(plain.__name__, bases, body)


def _bare(plain: type, ours: type) -> Any:
    cls: Any = _between(plain, ours)
    return cls.__new__(cls)


def _parametrized(cls: type, new: type) -> type:
    """The class that torch.nn.utils.parametrize made for one module, above another class."""
    if cls.__bases__[0] is new:
        return cls
    body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    return type(f"Parametrized{new.__name__}", (new,), body)


@functools.cache
def counterparts() -> dict[type, type]:
    """This library's class for each of torch's that has one."""
    from repkernels import nn
    from repkernels.nn import modules, reparametrizations

    ours = [v for v in vars(nn).values() if isinstance(v, type) and v.__module__.startswith("repkernels.")]
    ours += [modules.NonDynamicallyQuantizableLinear, *reparametrizations.MODULES]
    found = {}
    for cls in ours:
        if issubclass(cls, torch.nn.Module):
            theirs = [k for k in cls.__mro__[1:] if k.__module__.startswith("torch.") and k.__name__ == cls.__name__]
            found.update(dict.fromkeys(theirs[:1], cls))
    return found


@functools.cache
def _hooks() -> dict[type, type]:
    from repkernels.nn import reparametrizations

    return {hook.__bases__[0]: hook for hook in reparametrizations.HOOKS}


def _chosen(
    paths: Mapping[torch.nn.Module, list[str]], everywhere: Contract | None, named: Mapping[str, Contract | None]
) -> dict[torch.nn.Module, Contract | None]:
    """The contract of each module that one was given for."""
    used, pairs = set(), {}
    for module, names in paths.items():
        wanted = set()
        for path in names:
            matching = [pattern for pattern in named if _matches(pattern, path)]
            used.update(matching)
            if matching:
                wanted.add(named[matching[-1]])
            elif everywhere is not None:
                wanted.add(everywhere)
        if len(wanted) > 1:
            raise ValueError(f"contracts: one module has the names {', '.join(names)} and would get {wanted}")
        for pair in wanted:
            pairs[module] = pair
    for pattern in named:
        if pattern not in used:
            raise ValueError(f"contracts: no module that contracts has a name like {pattern!r}")
    return pairs


def _matches(pattern: str, path: str) -> bool:
    """Whether the pattern is like the path or like that of a module around it."""
    parts = path.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(len(parts), 0, -1)) or pattern == ""


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
