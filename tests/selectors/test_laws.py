"""What the laws of sparda_core.testing (tests/testing/test_every_selector.py) leave out of registered selectors.

They are tried there on every form; `replay`, which plays the rows that were recorded, forks, crops and rests here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparda_core.errors import PlanError
from sparda_core.plan import Phase
from tests.selectors.cases import CASES, FORMS, entry_points, factory, make, spec_for
from tests.selectors.world import Drive, World

LENGTH = 140  # blocks 0 .. 8 of 16 tokens: more than any budget but that of `dense`
EVERY_FORM = pytest.mark.parametrize(("name", "label"), FORMS)
REPLAYED = pytest.mark.parametrize(("name", "label"), [form for form in FORMS if form[0] == "replay"])


def drive(name: str, label: str, tmp_path: Path, world: World | None = None) -> Drive:
    world = World.random(spec=spec_for(name)) if world is None else world
    selector, lead = make(name, label, tmp_path)
    return Drive(selector, world, lead=lead)



def test_every_registered_selector_has_a_case() -> None:
    assert CASES.keys() == entry_points().keys()


@pytest.mark.parametrize("name", CASES)
def test_a_selector_knows_its_registered_name(name: str) -> None:
    assert factory(name).name == name



@EVERY_FORM
def test_the_budget_is_spent_wherever_there_are_blocks_for_it(name: str, label: str, tmp_path: Path) -> None:
    driven = drive(name, label, tmp_path)
    spec = driven.world.spec
    want = spec.forced if name == "window" else min(spec.budget, LENGTH // spec.block + 1)
    driven.prefill(0, LENGTH)
    assert ((driven.decode([0], [LENGTH]) >= 0).sum(-1) == want).all()





@REPLAYED
def test_an_inactive_row_selects_nothing_and_disturbs_nobody(name: str, label: str, tmp_path: Path) -> None:
    alone, beside = drive(name, label, tmp_path), drive(name, label, tmp_path)
    for driven in (alone, beside):
        driven.prefill(0, LENGTH)
    want = alone.decode([0], [LENGTH])
    got = beside.decode([1, 0], [-1, LENGTH])
    assert (got[:, 0] == -1).all()
    np.testing.assert_array_equal(got[:, 1], want[:, 0])


@REPLAYED
def test_a_fork_goes_on_as_its_source_did_and_then_its_own_way(name: str, label: str, tmp_path: Path) -> None:
    forked, source, copy = (drive(name, label, tmp_path) for _ in range(3))
    for driven in (forked, source, copy):
        driven.prefill(0, LENGTH)
        driven.decode([0], [LENGTH])
    forked.bound.row_forked(0, 7)
    # the copy goes on in another text, the source in its own
    other, *_ = (driven.world.splice(0, 1, LENGTH + 1) for driven in (forked, source, copy))
    for position in range(LENGTH + 1, LENGTH + 40):
        got = forked.decode([0, other], [position] * 2, rows=(0, 7))
        np.testing.assert_array_equal(got[:, :1], source.decode([0], [position]))
        np.testing.assert_array_equal(got[:, 1:], copy.decode([other], [position], rows=(0,)))
    forked.bound.row_retired(0)
    last = LENGTH + 40
    np.testing.assert_array_equal(
        forked.decode([other], [last], rows=(7,)), copy.decode([other], [last], rows=(0,))
    )  # fmt: skip


@REPLAYED
@pytest.mark.parametrize("tokens", [30, 100])
def test_a_cropped_row_is_as_one_that_never_was_longer(name: str, label: str, tokens: int, tmp_path: Path) -> None:
    driven, fresh = drive(name, label, tmp_path), drive(name, label, tmp_path)
    driven.prefill(0, LENGTH)
    driven.decode([0], [LENGTH])
    driven.bound.row_cropped(0, tokens)
    fresh.prefill(0, tokens)
    other, _ = (again.world.splice(0, 1, tokens) for again in (driven, fresh))
    for position in range(tokens, tokens + 60):
        got, want = (again.decode([other], [position], rows=(0,)) for again in (driven, fresh))
        np.testing.assert_array_equal(got, want)



@EVERY_FORM
def test_a_kind_that_was_never_declared_is_refused(name: str, label: str, tmp_path: Path) -> None:
    driven = drive(name, label, tmp_path)
    with pytest.raises(PlanError, match="'attend'"):
        driven.bound.run("attend", driven.world.view([0], [[LENGTH]], layer=1, phase=Phase.DECODE))
