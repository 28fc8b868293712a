"""Safetensors files, read and written so that nothing half-done is ever left or trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparda_core.errors import WeightsError
from sparda_core.files import whole_file


def stays_inside(folder: Path, name: str) -> bool:
    """Whether the file `name` of a checkpoint's folder lies in it, links followed.

    The cache of Hugging Face's hub has links in its `snapshots`, to files in `blobs` beside them.
    """
    home, real = folder.resolve(), (folder / name).resolve()
    homes = [home, home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [home]
    return any(real.is_relative_to(one) for one in homes)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """All tensors of a file, mapped rather than read, and its metadata; WeightsError if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"weights={str(path)!r} cannot be read ({error}); restore the file") from error


def read_metadata(path: Path) -> dict[str, str]:
    """Only the metadata of a file; WeightsError if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"weights={str(path)!r} cannot be read ({error}); restore the file") from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write `path` in one step: a temporary file beside it, then a rename; folders are made as needed.

    raises  OSError when there is no room or no permission; then nothing of it is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(path) as part:
            save_file({key: value.contiguous() for key, value in tensors.items()}, part, metadata=dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
