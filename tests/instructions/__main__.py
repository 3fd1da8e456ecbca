"""`python -m tests.instructions [TARGET ...]`: checks every kernel on every target; `--forbidden` checks the checks.

Exit code 1 and one line for each violation. The interpreter is turned off here, before Triton is imported.
"""

import os
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
# Kernels without machine code must not be found by a process that would run them.
os.environ["TRITON_CACHE_DIR"] = str(Path(__file__).parents[2] / "build" / "instructions")

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import triton

from tests.instructions.case import FEW
from tests.instructions.check import check, check_forbidden
from tests.instructions.compiled import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.instructions", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--forbidden", action="store_true", help="check that each forbidden thing is caught")
    parser.add_argument(
        "--few", action="store_true", help="fewer variants: of products of tiles and one of each other kernel"
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    targets = options.targets or list(TARGETS)
    if options.few:
        os.environ[FEW] = "1"
    begin, failed = time.monotonic(), False
    job = check_forbidden if options.forbidden else check
    print(f"Triton {triton.__version__}: {', '.join(targets)}", flush=True)
    with ProcessPoolExecutor(min(options.workers, len(targets)), mp_context=get_context("spawn")) as pool:
        for report in pool.map(job, targets):
            names = ", ".join(sorted(report.names))
            print(f"{report.target}: {report.compiled} compiled, {len(report.wrong)} wrong: {names}")
            for what in report.wrong:
                print(what)
            failed |= bool(report.wrong) or not report.compiled
    print(f"{time.monotonic() - begin:.0f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
