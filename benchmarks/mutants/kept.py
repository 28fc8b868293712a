"""Outcomes as they are kept, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.mutants.declared import LIST, Mutant
from benchmarks.mutants.runs import CAUGHT, HUNG, Outcome
from sparda_core.errors import ConfigError
from sparda_core.files import parse_json, write_whole

PAGE = Path("docs/mutants.md")
_TEXT = """# Mutants

A test that cannot fail proves nothing. Each *mutant* below is a named bug, put into a copy of the tree by replacing
one piece of text; the tests named with it must fail there, while all of them pass on the tree as it is. `make mutants`
runs them and fills this page; the list is in [{list}](../{list}). A mutant whose text does not stand exactly once in
its file any more is refused as stale, and `make test` checks that of all of them. The simulator's laws have mutants of
their own ([laws.md](laws.md)).

{counts} Run on {date}, commit `{commit}`, {cpu}, {cores} cores, {minutes:.0f} minutes of tests; GPU kernels by
Triton's interpreter. With `--resume` an outcome is kept as long as the mutant, its file and its tests are the same.

| mutant | the bug it plays | in | noticed by |
| --- | --- | --- | --- |
{rows}
"""


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Outcomes of an earlier run by name; nothing where there was none. Raises ConfigError for another file."""
    if not path.is_file():
        return {}
    try:
        return {entry["name"]: Outcome(**entry) for entry in parse_json(path.read_bytes())["mutants"]}
    except (KeyError, TypeError, ValueError) as wrong:
        raise ConfigError(f"{path}: not what this script wrote ({wrong!r}); name another file") from wrong


def write_outcomes(path: Path, outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> None:
    """Write all at once; raises OSError."""
    document = {**about, "mutants": [attrs.asdict(outcome) for outcome in outcomes]}
    write_whole(path, json.dumps(document, indent=1) + "\n")


def page(mutants: Sequence[Mutant], document: Mapping[str, Any]) -> str:
    """docs/mutants.md of one document of outcomes."""
    outcomes = {entry["name"]: Outcome(**entry) for entry in document["mutants"]}
    noticed = sum(outcome.result in (CAUGHT, HUNG) for outcome in outcomes.values())
    return _TEXT.format(
        list=LIST.as_posix(), counts=f"{noticed} of {len(mutants)} are noticed.", date=document["date"][:10],
        commit=str(document["commit"])[:12], cpu=document["machine"]["cpu"], cores=document["machine"]["cores"],
        minutes=sum(outcome.took_s for outcome in outcomes.values()) / 60,
        rows="\n".join(_row(mutant, outcomes.get(mutant.name)) for mutant in mutants),
    )  # fmt: skip


def _row(mutant: Mutant, outcome: Outcome | None) -> str:
    if outcome is None or outcome.digest == "":
        how = "not run"
    elif outcome.result == HUNG:
        how = "tests that do not end"
    else:
        file, _, name = outcome.by.partition("::")
        how = f"`{Path(file).parent.name}/{Path(file).name}`: {name.partition('[')[0]}" if name else outcome.result
    return f"| `{mutant.name}` | {mutant.bug} | `{mutant.file.removeprefix('sparda_core/')}` | {how} |"
