"""Deep-learning operations whose every bit is defined: by the operands and the contract, and by nothing else."""

from repkernels import nn, optim, random
from repkernels.contract import Contract, checkpoint_contexts, contract, get_contract, set_contract
from repkernels.digest import digest
from repkernels.ops.matmul import matmul
from repkernels.prepare import Prepared, prepare
from repkernels.random import manual_seed

__version__ = "0.1.0"

# Rises whenever any bit of any result changes.
NUMERICS_VERSION = 1

__all__ = [
    "NUMERICS_VERSION",
    "Contract",
    "Prepared",
    "checkpoint_contexts",
    "contract",
    "digest",
    "get_contract",
    "manual_seed",
    "matmul",
    "nn",
    "optim",
    "prepare",
    "random",
    "set_contract",
]
