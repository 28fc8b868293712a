"""Every law on random cases; every law under each of its mutants, where it must fail; and the table in docs/laws.md."""

from __future__ import annotations

import re

import attrs
import pytest
from hypothesis import Phase, given, settings

from sparda_core.whatif.scenario import Scenario
from tests.house.tree import ROOT
from tests.profiles import NIGHTLY
from tests.simulator.laws import (
    copies,
    determinism,
    knobs,
    mutants,
    mutants_of_plans,
    mutants_of_predictions,
    mutants_of_slots,
    predictions,
    schedules,
    sharing,
    slots,
    waiting,
)
from tests.simulator.laws.law import LAWS, MUTANTS, Law, tables

#: Importing a module registers its laws, or its mutants.
GROUPS = (sharing, waiting, schedules, slots, copies, predictions, determinism, knobs)
BUGS = (mutants, mutants_of_plans, mutants_of_slots, mutants_of_predictions)
KILLS = [(law, name) for law in LAWS.values() for name in law.mutants]
#: Cases of a search for one that shows a mutant.
SEARCH = 300
#: The usual number of examples of the profile in use, in terms of the quick one's 25.
MORE = settings.default.max_examples / 25 if settings.default else 1


def holds(law: Law, examples: int, *, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    """Raise the AssertionError of the first case for which the law does not hold."""
    @settings(
        max_examples=examples, derandomize=not NIGHTLY, database=None, deadline=None, phases=phases,
        report_multiple_bugs=False,
    )  # fmt: skip
    @given(law.cases)
    def every(case: object) -> None:
        law.check(case)

    every()


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_law_holds_for_every_case_that_was_tried(law: Law) -> None:
    holds(law, max(1, round(law.examples * MORE)))


@pytest.mark.parametrize(("law", "name"), KILLS, ids=[f"{law.name}: {name}" for law, name in KILLS])
def test_a_law_fails_under_its_mutant(law: Law, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = law.mutants[name]
    if case is not None:
        law.check(case)
    MUTANTS[name].patch(monkeypatch)
    with pytest.raises(AssertionError):
        holds(law, SEARCH, phases=(Phase.generate,)) if case is None else law.check(case)


def test_every_law_has_a_mutant_and_every_mutant_is_noticed() -> None:
    assert not [law.name for law in LAWS.values() if not law.mutants]
    assert {name for _, name in KILLS} == MUTANTS.keys()


def test_the_tables_in_the_documents_name_every_law_and_every_mutant() -> None:
    shown = [line for line in (ROOT / "docs" / "laws.md").read_text().splitlines() if line.startswith("|")]
    assert shown == [line for line in tables().splitlines() if line], f"docs/laws.md should hold\n{tables()}"


def test_the_readme_counts_laws_and_mutants_as_they_are() -> None:
    (told,) = re.findall(r"(\d+) \[laws\].* one of (\d+) named bugs", (ROOT / "README.md").read_text())
    assert told == (str(len(LAWS)), str(len(MUTANTS)))


def test_every_knob_of_a_scenario_has_a_scene() -> None:
    assert sorted(knobs.SCENES) == sorted(field.name for field in attrs.fields(Scenario))
