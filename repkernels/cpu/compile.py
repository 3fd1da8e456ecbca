"""How this package's CPU kernels are compiled: Numba, without the GIL, kept on disk between processes."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


@functools.cache
def _sources() -> str:
    """A digest of every source file that compiled code comes from: those beside and below this one, and constants."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(path for part in ("coefficients", "cpu") for path in (package / part).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles `function` at its first call for each set of types, or loads what an earlier process compiled.

    Numba looks only at the file of the function itself to see whether kept code is stale, but its bits also come
    from the functions and constants it uses: here the stamp covers all files. Where nothing can be kept, it compiles
    each time. x / 0 is what IEEE-754 says, as everywhere else, not an exception.
    """
    try:
        compiled = njit(nogil=True, cache=True, error_model="numpy")(function)
        compiled._cache._cache_file._source_stamp = _sources()
    except (RuntimeError, AttributeError):
        return njit(nogil=True, error_model="numpy")(function)
    return compiled
