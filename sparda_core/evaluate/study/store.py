"""The folder of a study: one file a window or task, written whole after each finished part."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.files import make_folder, parse_json, read_document, write_whole

STUDY, ROWS = "study.json", "rows"
#: Within which a study that another process has begun has its first file.
_BEGUN_S = 0.3


class Rows:
    """Rows by name; each a JSON object that grows by parts.

    folder    made if it is not there
    identity  what makes two studies the same one; a folder that holds another is refused
    raises    ConfigError: another study (what differs is named), or files that are no study's; RecordingError: a file
              is damaged; OSError
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        check_ours(folder)
        self._rows = make_folder(make_folder(folder) / ROWS)
        mine = json.loads(json.dumps(identity))
        held = _read(folder / STUDY)
        if held is None:
            write_whole(folder / STUDY, json.dumps(mine, indent=1) + "\n")
        elif held != mine:
            names = sorted(name for name in {*held, *mine} if held.get(name) != mine.get(name))
            raise ConfigError(
                f"folder {str(folder)!r} holds another study: {', '.join(names)} differ; name a fresh folder with --out"
            )

    def get(self, name: str) -> dict[str, Any]:
        """The row as far as it is done; empty where nothing is."""
        return _read(self.place(name)) or {}

    def put(self, name: str, row: Mapping[str, Any]) -> None:
        """Replace the row, all or nothing."""
        write_whole(self.place(name), json.dumps(row, allow_nan=True) + "\n")

    def place(self, name: str) -> Path:
        """The file of a row."""
        return self._rows / (re.sub(r"[^\w.-]", "_", name) + ".json")


def check_ours(folder: Path) -> None:
    """Raise ConfigError for a folder that holds files but no study: nothing of anybody else's is written over."""
    if _foreign(folder):
        time.sleep(_BEGUN_S)  # several processes that share a study may be making the folder at this moment
    found = _foreign(folder)
    if found:
        raise ConfigError(
            f"folder {str(folder)!r} holds {found!r} and no {STUDY}: it is no study's; name a fresh or empty folder "
            "with --out"
        )


def _foreign(folder: Path) -> str:
    """A file of a folder that is no study's, or no name."""
    if not folder.is_dir() or (folder / STUDY).exists():
        return ""
    named = sorted(path.name for path in folder.iterdir() if path.name != ROWS and not path.name.startswith("."))
    return named[0] if named else ROWS if any((folder / ROWS).glob("[!.]*")) else ""


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = parse_json(read_document(path))
    except ValueError as wrong:
        raise RecordingError(f"{path}: not JSON ({wrong}); remove it, and its part is done again") from wrong
    if not isinstance(held, dict):
        raise RecordingError(f"{path}: not an object; remove it, and its part is done again")
    return held
