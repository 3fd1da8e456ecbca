"""What the docstrings of a family of functions have in common, written once."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def add(functions: Iterable[Callable[..., Any]], text: str) -> None:
    """Ends the docstring of each function with `text`."""
    for function in functions:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{inspect.cleandoc(text)}"
