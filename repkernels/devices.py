"""What commands have in common: the device that --device names, and the file that --json names."""

import os
from pathlib import Path

import torch
import typer


def named_device(name: str) -> torch.device:
    """cpu, cuda or cuda:N; with no name a GPU if there is one. Raises typer.BadParameter for what is not there."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise typer.BadParameter(f"--device: expected cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device: expected cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise typer.BadParameter(f"--device: there is no {device}; this machine has {torch.cuda.device_count()} GPUs")
    return device


def writable(file: Path | None) -> None:
    """Makes the folder of `file`; raises typer.BadParameter, before any work is done, if it can't be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--json: {file}: {error.strerror}") from None
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise typer.BadParameter(f"--json: {file} can't be written")
