"""layer_norm on the CPU (SPEC.md, "layer_norm")."""

import functools

from repkernels.cpu import row_norm

forward = functools.partial(row_norm.forward, centred=True)
backward = functools.partial(row_norm.backward, centred=True)
