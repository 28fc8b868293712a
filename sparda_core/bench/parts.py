"""Finished parts of a long job on disk, so that an interrupted run goes on where it stopped. Torch-free."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sparda_core.files import make_folder, parse_json, write_whole


def to_plain(value: Any) -> Any:
    """`value` as JSON can hold it: attrs classes become objects, arrays lists, what is not finite None."""
    if attrs.has(type(value)):
        return {field.name: to_plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, all or nothing."""
    write_whole(path, json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n")


class PartStore:
    """Results of named parts, each in a file of its own, valid for one key."""

    def __init__(self, folder: Path, *, key: str) -> None:
        """Parts of another key are ignored, and replaced when their part is done again."""
        self._folder, self._key = make_folder(folder), key

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The stored result of a part, as plain values; made and stored where there is none."""
        stored = self.find(name)
        if stored is None:
            stored = to_plain(make())
            write_json(self._path(name), {"key": self._key, "part": name, "result": stored})
        return stored

    def find(self, name: str) -> Any | None:
        """The stored result, or None where this part has not been finished with this key."""
        try:
            found = parse_json(self._path(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            return None  # cut short by a full disk or a crash: as good as not there
        mine = isinstance(found, dict) and found.get("key") == self._key
        return found.get("result") if mine else None

    def clear(self) -> None:
        """Forget all parts."""
        shutil.rmtree(self._folder)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '--').replace(' ', '-')}.json"
