"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `path` (text as UTF-8) in one step; whoever reads it sees the old file or the new one, never a part.

    raises  OSError when the folder is missing or there is no room or no permission; nothing is left then.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def make_folder(path: Path) -> Path:
    """`path` as a folder that can be written to, made with its parents if need be.

    raises  OSError saying which folder; found out before any work is done for it.
    """
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        return path
