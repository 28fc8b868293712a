"""Profiles as TOML: read strictly, written atomically, found by name or path."""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ProfileError, UnknownNameError
from sparda_core.files import parse_toml, read_document, write_whole
from sparda_core.simulator.cpu import CpuProfile
from sparda_core.simulator.derive import FOLDER, completed
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.lint import lint
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.quantity import Quantity

_DEVICES: dict[str, type[Profile]] = {"gpu": GpuProfile, "cpu": CpuProfile}


def profile_names() -> tuple[str, ...]:
    """Profiles that come with the package, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_profile(name: str | Path) -> Profile:
    """A shipped profile by name, or any by the path of its file (it ends in .toml).

    Raises UnknownNameError, or ProfileError that names the field, and for numbers against physics.
    """
    return _sound(*_read(name))


def findings_of(name: str | Path) -> tuple[str, ...]:
    """Everything that is wrong with a profile, in words: what keeps it from being read, or each number against physics.

    Raises UnknownNameError for a name that no profile has.
    """
    try:
        profile, where = _read(name)
    except ProfileError as wrong:
        return (str(wrong),)
    return tuple(f"{where}: {finding}" for finding in lint(profile))


def parse_profile(text: str, *, where: str = "profile") -> Profile:
    """A profile from TOML text; raises ProfileError naming `where` and the field."""
    return _sound(_parse(text, where), where)


def gpu_profile_of(table: Mapping[str, Any], where: str) -> GpuProfile:
    """A GPU's profile from its file's table, `device` left out, with everything added that it may leave out.

    Raises ProfileError that names `where` and the field, and for numbers against physics.
    """
    profile = _sound(_build(GpuProfile, completed(table), where), where)
    assert isinstance(profile, GpuProfile)
    return profile


def _read(name: str | Path) -> tuple[Profile, str]:
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in profile_names():
            raise UnknownNameError(what="profile", name=str(name), known=profile_names(), suffix=".toml")
        path = FOLDER / f"{name}.toml"
    try:
        text = read_document(path)
    except (OSError, ValueError) as wrong:  # no UTF-8, or a path with a zero byte
        why = getattr(wrong, "strerror", None) or wrong
        raise ProfileError(
            f"profile {str(path)!r} cannot be read: {why}; `sparda profile list` names those that are shipped"
        ) from wrong
    return _parse(text, str(path)), str(path)


def _parse(text: str, where: str) -> Profile:
    try:
        table = parse_toml(text)
    except ValueError as wrong:
        raise ProfileError(f"{where}: not TOML: {wrong}") from wrong
    device = table.pop("device", None)
    if not isinstance(device, str) or device not in _DEVICES:
        raise ProfileError(f"{where}: device={device!r} must be one of: {', '.join(_DEVICES)}")
    profile: Profile = _build(_DEVICES[device], completed(table) if device == "gpu" else table, where)
    return profile


def _sound(profile: Profile, where: str) -> Profile:
    broken = lint(profile)
    if broken:
        raise ProfileError(f"{where}: " + "; ".join(broken))
    return profile


def save_profile(profile: Profile, path: str | Path) -> Path:
    """Write a profile where `load_profile` reads it, all or nothing; settings such as an emulated link are left out."""
    target = Path(path)
    if target.suffix != ".toml":
        raise ProfileError(f"profile path {str(target)!r} must end in .toml")
    text = profile_toml(profile)
    parse_profile(text, where=str(target))
    write_whole(target, text)
    return target


def profile_toml(profile: Profile) -> str:
    """A profile as TOML text."""
    head = [f"device = {json.dumps(profile.device)}"]
    return "\n".join([*head, *_lines(profile, ())]) + "\n"


def _build(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """An instance of an attrs class; every field stated, none unknown, every unit right."""
    if not isinstance(table, Mapping):
        raise ProfileError(f"{where} must be a table, not {table!r}")
    fields = {f.name: f for f in attrs.fields(cls) if not f.metadata.get("setting")}
    unknown = sorted(set(table) - set(fields))
    if unknown:
        near = difflib.get_close_matches(unknown[0], fields, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ProfileError(f"{where}: field {unknown[0]!r} is unknown; {hint}known: {', '.join(sorted(fields))}")
    missing = sorted(n for n, f in fields.items() if f.default is attrs.NOTHING and n not in table)
    if missing:
        raise ProfileError(f"{where}: missing {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    values = {name: _value(fields[name], hints[name], table[name], f"{where}: {name}") for name in table}
    try:
        return cls(**values)
    except ProfileError as wrong:
        raise ProfileError(f"{where}: {wrong}") from wrong
    except (OverflowError, TypeError, ValueError) as wrong:
        raise ProfileError(f"{where} is malformed: {wrong}") from wrong


def _value(field: attrs.Attribute[Any], hint: Any, raw: Any, where: str) -> Any:
    inner = field.metadata.get("table_of")
    if inner is not None:
        if not isinstance(raw, Mapping):
            raise ProfileError(f"{where} must be a table, not {raw!r}")
        return {key: _build(inner, value, f"{where}.{key}") for key, value in raw.items()}
    part = next((t for t in (hint, *typing.get_args(hint)) if isinstance(t, type) and attrs.has(t)), None)
    if part is None:
        if hint is str and not isinstance(raw, str):
            raise ProfileError(f"{where}={raw!r} must be a text")
        return raw
    value = _build(part, raw, where)
    unit = field.metadata.get("unit")
    if isinstance(value, Quantity) and value.unit != unit:
        raise ProfileError(f"{where}: unit={value.unit!r} must be {unit!r}")
    return value


def _lines(part: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Plain values and quantities of a section first, then its sub-sections."""
    values = {
        f.name: getattr(part, f.name) for f in attrs.fields(type(part))
        if not f.metadata.get("setting") and getattr(part, f.name) not in (None, ())
    }  # fmt: skip
    later = {name: value for name, value in values.items() if _is_section(value)}
    for name, value in values.items():
        if name not in later:
            yield f"{_key(name)} = {_plain(value)}"
    for name, value in later.items():
        inner = (*path, name)
        if isinstance(value, dict):
            yield from _dict_lines(value, inner)
        else:
            yield from ("", f"[{'.'.join(map(_key, inner))}]")
            yield from _lines(value, inner)


def _dict_lines(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if not any(attrs.has(type(inner)) for inner in value.values()):
        yield from ("", f"[{'.'.join(map(_key, path))}]")
        yield from (f"{_key(name)} = {_plain(inner)}" for name, inner in sorted(value.items()))
        return
    for name, inner in sorted(value.items()):
        yield from ("", f"[{'.'.join(map(_key, (*path, name)))}]")
        yield from _lines(inner, (*path, name))


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) or (attrs.has(type(value)) and not isinstance(value, Quantity))


def _plain(value: Any) -> str:
    if isinstance(value, Quantity):
        inner = ", ".join(f"{f.name} = {_plain(getattr(value, f.name))}" for f in attrs.fields(Quantity))
        return f"{{ {inner} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_plain, value))}]"
    # JSON's texts and numbers are TOML's, but for the escape of a slash, which json does not write.
    return json.dumps(str(value) if isinstance(value, str) else value, ensure_ascii=False)


def _key(name: str) -> str:
    plain = all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if name and plain else json.dumps(name, ensure_ascii=False)
