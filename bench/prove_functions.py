"""Proofs of the functions over their fp32 inputs: `python -m bench.prove_functions [NAME ...] [--json FILE]`.

On a GPU each correctly rounded function takes all 2^32 inputs: its result must have the bits of RN32(f(x)), found in
double-double arithmetic by other methods, and by mpmath where that cannot decide. On a CPU, samples (`--inputs`, or all
with `--all`: hours). `pow` is sampled everywhere. `half` takes all inputs of the half types' own sequences, `sincospi`
those that normal random numbers have. `exp_f32` and `ln_f32` are proven on the CPU over all inputs, in a few minutes,
when they are named.
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

OTHERS = ("pow", "half", "sincospi")
PUBLISHED = ("exp_f32", "ln_f32")
SAMPLED = 1 << 18


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.prove_functions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="functions; all but exp_f32 and ln_f32 by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="a GPU if there is one")
    parser.add_argument("--inputs", type=int, help=f"inputs of each function; all on a GPU, {SAMPLED} on a CPU")
    parser.add_argument("--all", action="store_true", help="all inputs, on a CPU too")
    parser.add_argument("--processes", type=int, help="functions proven at a time; 8 on a GPU, the cores on a CPU")
    parser.add_argument("--json", metavar="FILE", help="where to keep the record")
    parser.add_argument("--hard-cases", action="store_true", help="add what is hard to round to tests/hard_cases.json")
    return parser.parse_args()


def proven(name: str, device: str, inputs: int) -> dict[str, Any]:
    """The record of one name, computed in a process of its own."""
    import torch

    where = torch.device(device)
    if where.type == "cpu":
        from tests import interpreter

        interpreter.patch()
    if name in PUBLISHED:
        from .proofs import published

        return published.prove(name)
    if name == "pow":
        from .proofs import power

        return power.prove(where)
    if name == "half":
        from .proofs import half

        return half.prove(where)
    if name == "sincospi":
        from .proofs import turns

        return turns.prove(where, inputs)
    from .proofs import compare

    return compare.prove(name, where, inputs)


def main() -> int:
    options = parsed()
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        # Triton reads this when a kernel is defined.
        os.environ["TRITON_INTERPRET"] = "1"
        os.nice(10)
    from . import machine
    from .proofs import hard_cases
    from .proofs.functions import TRUTHS

    names = options.names or [*TRUTHS, *OTHERS]
    if unknown := set(names) - {*TRUTHS, *OTHERS, *PUBLISHED}:
        raise SystemExit(
            f"NAME: unknown {', '.join(sorted(unknown))}; there are {', '.join((*TRUTHS, *OTHERS, *PUBLISHED))}"
        )
    inputs = 1 << 32 if options.all or device == "cuda" and not options.inputs else options.inputs or SAMPLED
    processes = options.processes or (8 if device == "cuda" else os.cpu_count() or 1)
    records: dict[str, Any] = {}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as executor:
        tasks = {executor.submit(proven, name, device, inputs): name for name in names}
        for task in as_completed(tasks):
            name = tasks[task]
            records[name] = {"error": repr(task.exception())} if task.exception() else task.result()
            print(name, json.dumps({k: v for k, v in records[name].items() if k != "hard_cases"}), flush=True)
    record = {
        "command": "python -m bench.prove_functions " + " ".join(sys.argv[1:]),
        "machine": machine.describe(torch.device(device)),
        **{name: records[name] for name in names},
    }
    if options.json:
        with open(options.json, "w") as file:
            file.write(json.dumps(record, indent=1) + "\n")
    if options.hard_cases:
        found = {n: [*r["hard_cases"], *r["wrong_at"]] for n, r in records.items() if n in TRUTHS and "wrong" in r}
        hard_cases.add(found)
    failed = [name for name in names if not records[name].get("holds")]
    print(f"{len(names) - len(failed)} of {len(names)} hold" + (f"; not {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
