"""`sparda profile`: the machines that predict knows, every number with its source, what is wrong, a new one's file."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.cli.options import add_json
from sparda_core.cli.screen import plain, show_json, show_table
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import ConfigError

if TYPE_CHECKING:
    from sparda_core.simulator.profile import Profile

ACTIONS = ("list", "show", "lint", "new")
BAD_INPUT = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda profile`."""
    parser.add_argument(
        "action", choices=ACTIONS,
        help="list: those shipped; show: every number of one; lint: hold them against physics, a line for each "
        "finding, exit 2 if there is one; new: write a file to start your own from",
    )  # fmt: skip
    parser.add_argument(
        "profiles", nargs="*", metavar="NAME|FILE",
        help="shipped ones by name, any by its .toml file (lint: all shipped; new: the file to write)",
    )  # fmt: skip
    parser.add_argument("--like", default="h200", metavar="NAME|FILE", help="new: the profile to take numbers from")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List, show, check or start profiles. Lint returns 2 where it finds something."""
    from sparda_core.simulator.profile_file import load_profile, profile_names

    if args.action != "new":
        refuse_unused(args, add_arguments, (), where=f"profile {args.action}")
    if args.action in ("show", "new") and len(args.profiles) != 1:
        known = f"known: {', '.join(profile_names())}" if args.action == "show" else "the .toml file to write"
        raise ConfigError(f"profile {args.action} takes one {'profile' if args.action == 'show' else 'file'}; {known}")
    if args.action == "list" and args.profiles:
        raise ConfigError("profile list takes no names; `sparda profile show NAME` shows one")
    if args.action == "lint":
        return _lint(args.profiles or profile_names(), json=args.json)
    if args.action == "new":
        return _new(Path(args.profiles[0]), args.like, json=args.json)
    loaded = [load_profile(name) for name in args.profiles or profile_names()]
    if args.json:
        show_json([_document(profile) for profile in loaded])
    elif args.action == "show":
        _show(loaded[0])
    else:
        _list("Profiles", loaded)
    return 0


def _lint(names: Sequence[str], *, json: bool) -> int:
    from sparda_core.simulator.profile_file import findings_of, load_profile

    found = {name: findings_of(name) for name in names}
    broken = [finding for findings in found.values() for finding in findings]
    if json:
        show_json([{"profile": name, "findings": findings} for name, findings in found.items()])
    elif broken:
        sys.stderr.writelines(f"sparda: error: {' '.join(finding.split())}\n" for finding in broken)
    else:
        _list("Nothing wrong with", [load_profile(name) for name in names])
    return BAD_INPUT if broken else 0


def _new(path: Path, like: str, *, json: bool) -> int:
    from sparda_core.files import write_whole
    from sparda_core.simulator.profile_file import load_profile
    from sparda_core.simulator.profile_template import template

    if path.suffix != ".toml":
        raise ConfigError(f"profile file {str(path)!r} must end in .toml")
    if path.exists():
        raise ConfigError(f"profile file {str(path)!r} exists; name another, or remove it first")
    write_whole(path, template(path.stem, load_profile(like)))
    if json:
        show_json({"file": path, "like": like})
    else:
        sys.stdout.write(f"{path}: replace its numbers, then `sparda profile lint {path}`\n")
    return 0


def origin(profile: Profile, today: dt.date | None = None) -> list[str]:
    """How old a profile's numbers are and, of one that was calibrated, by what and on what."""
    age = _age(profile.date, today or dt.datetime.now(dt.UTC).date())
    made = getattr(profile, "calibration", None)
    if made is None:
        return [f"Numbers of {profile.date}{age}."]
    commit = "" if made.commit == "None" else f", commit {made.commit[:12]}"
    software = f"driver {made.driver}, CUDA {made.cuda}, torch {made.torch}, triton {made.triton}"
    where = f"Calibrated on {made.date[:10]}{age} on {made.gpu}: {software}{commit}"
    return [f"{where}, by `{made.command}`; samples {made.samples}."]


def _age(date: str, today: dt.date) -> str:
    """In days; nothing for a date that is none."""
    try:
        days = (today - dt.date.fromisoformat(date)).days
    except ValueError:
        return ""
    return f" ({days} day{'' if days == 1 else 's'} old)"


def _list(title: str, loaded: Sequence[Profile]) -> None:
    rows = [(p.name, p.device, p.title, p.date, ", ".join(_bases(p)), p.digest) for p in loaded]
    show_table(title, ("name", "device", "title", "date", "numbers are", "digest"), rows)


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
    from sparda_core.simulator.quantity import Basis

    counts: dict[str, int] = {}
    for basis in profile.bases().values():
        counts[basis] = counts.get(basis, 0) + 1
    return [f"{counts[basis]} {basis}" for basis in Basis if basis in counts]


def _document(profile: Profile) -> dict[str, Any]:
    document: dict[str, Any] = plain(profile)
    return {"device": profile.device, "digest": profile.digest, "domain": profile.domain(), **document}


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
    bounds = [f"{name} {low:g} to {high:g}" for name, (low, high) in profile.domain().items()]
    notes = [*origin(profile), *([f"Calibrated for {', '.join(bounds)}."] if bounds else [])]
    show_table(title, ("number", "value", "unit", "basis", "source"), rows, notes=notes)
