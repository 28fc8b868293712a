"""`sparda profile`: the machines that predict knows, every number with its source, and what is wrong with one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.cli.options import add_json
from sparda_core.cli.screen import plain, show_json, show_table
from sparda_core.errors import ConfigError

if TYPE_CHECKING:
    from sparda_core.simulator.profile import Profile

ACTIONS = ("list", "show", "lint")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda profile`."""
    parser.add_argument(
        "action", choices=ACTIONS,
        help="list: those shipped; show: every number of one; lint: hold it against physics, exit 2 if it fails",
    )  # fmt: skip
    parser.add_argument(
        "profiles", nargs="*", metavar="NAME|FILE",
        help="shipped ones by name, any by its .toml file (lint: all shipped)",
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List, show or check profiles. A profile that fails its check raises ProfileError."""
    from sparda_core.simulator.profile_file import load_profile, profile_names

    if args.action == "show" and len(args.profiles) != 1:
        raise ConfigError(f"profile show takes one profile; known: {', '.join(profile_names())}")
    if args.action == "list" and args.profiles:
        raise ConfigError("profile list takes no names; `sparda profile show NAME` shows one")
    loaded = [load_profile(name) for name in args.profiles or profile_names()]
    if args.json:
        show_json([_document(profile) for profile in loaded])
    elif args.action == "show":
        _show(loaded[0])
    else:
        title = "Profiles" if args.action == "list" else "Nothing wrong with"
        rows = [(p.name, p.device, p.title, p.date, ", ".join(_bases(p)), p.digest) for p in loaded]
        show_table(title, ("name", "device", "title", "date", "numbers are", "digest"), rows)
    return 0


def numbers(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, number) of everything below an attrs object; a number is whatever states its basis."""
    for field in attrs.fields(type(part)):
        value = getattr(part, field.name)
        if hasattr(value, "basis"):
            yield prefix + field.name, value
        elif attrs.has(type(value)):
            yield from numbers(value, f"{prefix}{field.name}.")
        elif isinstance(value, dict):
            yield from ((f"{prefix}{field.name}.{key}", inner) for key, inner in sorted(value.items()))


def _bases(profile: Profile) -> list[str]:
    counts: dict[str, int] = {}
    for basis in profile.bases().values():
        counts[basis] = counts.get(basis, 0) + 1
    return [f"{count} {basis}" for basis, count in counts.items()]


def _document(profile: Profile) -> dict[str, Any]:
    document: dict[str, Any] = plain(profile)
    return {"device": profile.device, "digest": profile.digest, **document}


def _show(profile: Profile) -> None:
    rows = []
    for name, value in numbers(profile):
        if isinstance(value, str):
            rows.append((name, value, None, None, None))
            continue
        known = plain(value)
        shown = known.pop("value", None)
        unit, basis, source = (known.pop(key, None) for key in ("unit", "basis", "source"))
        rest = ", ".join(f"{key}={item}" for key, item in known.items())
        rows.append((name, rest if shown is None else f"{shown:.6g}", unit, basis, source))
    title = f"{profile.name} ({profile.device}, {profile.date}, digest {profile.digest}): {profile.title}"
    show_table(title, ("number", "value", "unit", "basis", "source"), rows)
