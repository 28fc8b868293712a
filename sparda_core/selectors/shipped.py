"""Recordings that come with the package, by name: `smollm2/forecast-16`. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "recordings"
SUFFIX = ".npz"


def recording_names() -> tuple[str, ...]:
    """Names of shipped recordings, MODEL/SELECTOR-BUDGET, sorted."""
    return tuple(sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob(f"*/*{SUFFIX}")))


def path_of(name: str | os.PathLike[str]) -> Path:
    """The file of a shipped recording; anything else is a path already."""
    return FOLDER / f"{name}{SUFFIX}" if str(name) in recording_names() else Path(name)
