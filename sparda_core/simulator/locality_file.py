"""Localities as TOML: read strictly, written atomically, found by name or path."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError, RecordingError, UnknownNameError
from sparda_core.files import parse_toml, read_document, write_whole
from sparda_core.simulator.locality import Fitted, LocalityModel

FOLDER = Path(__file__).parent / "localities"

_TEXT, _NUMBER = str, (int, float)
_KINDS: Mapping[str, Any] = {
    "name": _TEXT, "title": _TEXT, "source": _TEXT, "churn": _NUMBER, "reuse": list, "tail": _NUMBER, "fitted": dict,
}  # fmt: skip


def locality_names() -> tuple[str, ...]:
    """Localities that come with the package, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_locality(name: str | Path) -> LocalityModel:
    """A shipped locality by name, or any by the path of its file (it ends in .toml).

    Raises UnknownNameError with the nearest name, or RecordingError that names the file and the field.
    """
    path = Path(name)
    if path.suffix == ".toml":
        return _read(path)
    if str(name) not in locality_names():
        raise UnknownNameError(what="locality", name=str(name), known=locality_names(), suffix=".toml")
    return _shipped(str(name))


@lru_cache
def _shipped(name: str) -> LocalityModel:
    return _read(FOLDER / f"{name}.toml")


def _read(path: Path) -> LocalityModel:
    try:
        text = read_document(path)
    except OSError as wrong:
        raise RecordingError(
            f"locality {str(path)!r} cannot be read: {wrong.strerror or wrong}; "
            "`sparda calibrate --locality RECORDING` makes one"
        ) from wrong
    except UnicodeDecodeError as wrong:
        raise RecordingError(f"locality {str(path)!r} is no text: {wrong}") from wrong
    except ValueError as wrong:  # a path with a zero byte
        raise RecordingError(f"locality {str(path)!r} cannot be read: {wrong}") from wrong
    return parse_locality(text, where=str(path))


def parse_locality(text: str, *, where: str = "locality") -> LocalityModel:
    """A locality from TOML text; raises RecordingError naming `where` and the field."""
    try:
        table = parse_toml(text)
    except ValueError as wrong:
        raise RecordingError(f"{where}: not TOML: {wrong}") from wrong
    _check_names(table, _KINDS, where)
    for key, kind in _KINDS.items():
        if key in table and (not isinstance(table[key], kind) or isinstance(table[key], bool)):
            raise RecordingError(f"{where}: {key}={table[key]!r} is of the wrong kind")
    fitted = table.pop("fitted", None)
    try:
        return LocalityModel(**table, fitted=None if fitted is None else _fitted(fitted, f"{where}: fitted"))
    except RecordingError:
        raise
    except (ConfigError, OverflowError, TypeError, ValueError) as wrong:
        raise RecordingError(f"{where}: {wrong}") from wrong


def save_locality(model: LocalityModel, path: str | Path) -> Path:
    """Write a locality where `load_locality` reads it, all or nothing; raises RecordingError, OSError."""
    target = Path(path)
    if target.suffix != ".toml":
        raise RecordingError(f"locality path {str(target)!r} must end in .toml")
    write_whole(target, locality_toml(model))
    return target


def locality_toml(model: LocalityModel) -> str:
    """A locality as TOML text; `parse_locality` gives an equal one back."""
    values = attrs.asdict(model, recurse=False)
    fitted = values.pop("fitted")
    values["reuse"] = [list(point) for point in model.reuse]
    # JSON's texts, numbers and lists are TOML's.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value is not None]
    if fitted is not None:
        lines += ["", "[fitted]"]
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in attrs.asdict(fitted).items()]
    return "\n".join(lines) + "\n"


def _fitted(table: Mapping[str, Any], where: str) -> Fitted:
    fields = {field.name: field.type for field in attrs.fields(Fitted)}
    _check_names(table, fields, where)
    for key, value in table.items():
        kind = str if fields[key] in ("str", str) else int
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RecordingError(f"{where}: {key}={value!r} is of the wrong kind")
    return Fitted(**table)


def _check_names(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecordingError(f"{where}: field {unknown[0]!r} is unknown; {hint}known: {', '.join(known)}")
    missing = [key for key in known if key not in table and key not in ("tail", "fitted")]
    if missing:
        raise RecordingError(f"{where}: missing {', '.join(missing)}")
