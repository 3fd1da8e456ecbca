"""A block of plain torch code in which every operation has defined bits, or is refused."""

from repkernels.reproducible.mode import reproducible
from repkernels.reproducible.refusal import NotReproducible, NotReproducibleWarning

__all__ = ["NotReproducible", "NotReproducibleWarning", "reproducible"]
