"""What a result belongs to: the device, its driver, versions, the commit. Never the name of a host."""

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import repkernels


def describe(device: torch.device) -> dict[str, Any]:
    """Plain values for the JSON file."""
    found: dict[str, Any] = {"device": device_name(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
            "cuda": torch.version.cuda or f"hip {torch.version.hip}",
        }
    else:
        found |= {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return found | {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "numba": _version("numba"),
        "python": platform.python_version(),
        "repkernels": repkernels.__version__,
        "numerics_version": repkernels.NUMERICS_VERSION,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return model[1] if model else platform.machine()


def slug(name: str) -> str:
    """A file name's part: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _commit() -> str:
    """The checkout's commit, with a plus if files differ from it; empty outside a checkout."""
    here = str(Path(__file__).parent)
    commit = _output("git", "-C", here, "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", here, "status", "--porcelain", "--untracked-files=no")
    return commit + ("+" if commit and changed else "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """What a command prints; empty if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
