"""rms_norm on the CPU (SPEC.md, "rms_norm")."""

import functools

from repkernels.cpu import row_norm

forward = functools.partial(row_norm.forward, centred=False)
backward = functools.partial(row_norm.backward, centred=False)
