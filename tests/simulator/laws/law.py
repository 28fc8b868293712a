"""Laws and mutants as data: what must hold for every case, and the bugs that each law notices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import strategies as st

Case = TypeVar("Case")


@attrs.frozen(kw_only=True)
class Law:
    """One law.

    check     raises AssertionError where it does not hold for a case
    cases     where cases come from
    examples  how many are tried
    mutants   names of the bugs under which it must fail, each with a case that shows it (None: a search finds one)
    """

    check: Callable[[Any], None]
    cases: st.SearchStrategy[Any]
    examples: int
    mutants: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", " ")


@attrs.frozen(kw_only=True)
class Mutant:
    """One bug: `plays` says in a line which, `patch` puts it into the simulator."""

    name: str
    plays: str
    patch: Callable[[pytest.MonkeyPatch], None]


LAWS: dict[str, Law] = {}
MUTANTS: dict[str, Mutant] = {}


def law(
    cases: st.SearchStrategy[Case], *, mutants: Sequence[str] | Mapping[str, Case | None], examples: int = 25
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a law; its function's name, read as words, is what it says."""

    def add(check: Callable[[Case], None]) -> Callable[[Case], None]:
        kills = mutants if isinstance(mutants, Mapping) else dict.fromkeys(mutants)
        made = Law(check=check, cases=cases, examples=examples, mutants=kills)
        assert made.name not in LAWS, f"two laws say {made.name!r}"
        LAWS[made.name] = made
        return check

    return add


def mutant(name: str, plays: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[..., None]]:
    """Register a mutant."""

    def add(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[..., None]:
        assert name not in MUTANTS, f"two mutants are called {name!r}"
        MUTANTS[name] = Mutant(name=name, plays=plays, patch=patch)
        return patch

    return add


def tables() -> str:
    """The laws with their mutants, and the mutants with what they play, as docs/laws.md shows them."""
    laws = [f"| {law.name} | {', '.join(f'`{name}`' for name in law.mutants)} |" for law in LAWS.values()]
    bugs = [f"| `{mutant.name}` | {mutant.plays} |" for mutant in sorted(MUTANTS.values(), key=lambda m: m.name)]
    return "\n".join(
        ["| law | fails under |", "| --- | --- |", *laws, "", "| mutant | the bug it plays |", "| --- | --- |", *bugs]
    )
