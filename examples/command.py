"""What the scripts share: options as a command line, what is printed, what is written."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
import typer

import repkernels
from examples.training import Options, Training, trained
from repkernels.devices import writable


def command(options: type[Options], training: Callable[[Any], Training], about: str) -> Callable[[], None]:
    """A command line with the fields of `options` as its options, which runs `training` of them."""

    def run(**given: Any) -> None:
        try:
            chosen = options(**given)
            writable(chosen.json)
            made = training(chosen)
        except (ValueError, ModuleNotFoundError, FileNotFoundError) as error:
            raise typer.BadParameter(str(error)) from None
        every = max(1, chosen.steps // 20)

        def report(step: int, loss: float) -> None:
            if step % every == 0 or step == chosen.steps:
                print(f"step {step:5}  loss {loss:.6f}", flush=True)

        result = trained(made, report)
        if result["accuracy"] is not None:
            print(f"test accuracy {result['accuracy']:.2%}")
        print(f"{result['step']} steps, {result['seconds']} s on {made.device}, torch {torch.__version__}")
        for name, value in result["digests"].items():
            print(f"{name:8} {value}")
        if chosen.json is not None:
            given = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(chosen).items()}
            versions = {"torch": torch.__version__, "numerics_version": repkernels.NUMERICS_VERSION}
            chosen.json.write_text(json.dumps({"options": given, **versions, **result}, indent=1) + "\n")

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(options)
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = about
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    return app
