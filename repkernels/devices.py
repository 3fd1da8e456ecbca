"""The device that a command's --device names."""

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
