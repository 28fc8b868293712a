"""Each law of selectors refuses the selector that breaks it, and says which, where and how to see it again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.selectors.query import Query
from sparda_core.shapes import BlockSpec
from sparda_core.testing import SELECTOR_LAWS, LawBroken, Scene, check_selector, tools
from sparda_core.testing.law import chosen_laws
from tests.testing.broken_selectors import BROKEN, Broken, OverBudget, Sometimes
from tests.testing.methods import REFERENCES

#: One that is on a GPU only has its own test.
ELSEWHERE = {"device"}
#: Scenes in which what is broken shows at once.
PLAIN = Scene(kv_heads=2, group=2, tokens=(141, 75), steps=2, chunk=37, seed=114)


def test_every_law_has_a_selector_that_breaks_it() -> None:
    assert BROKEN.keys() | ELSEWHERE == {law.name for law in SELECTOR_LAWS}


@pytest.mark.parametrize("law", BROKEN)
def test_a_law_refuses_the_selector_that_breaks_it(law: str) -> None:
    reference = REFERENCES["query"]
    with pytest.raises(LawBroken) as broken:
        check_selector(BROKEN[law], laws=[law], scene=PLAIN, reference=reference)
    assert broken.value.law == law
    assert check_selector(Query(), laws=[law], scene=PLAIN, reference=reference).held == (law,)


def test_a_law_that_breaks_names_the_smallest_example_and_how_to_see_it_again() -> None:
    with pytest.raises(LawBroken) as broken:
        check_selector(Broken(half=OverBudget), laws=["within-budget"], examples=20)
    told = broken.value
    assert told.example in told.reproduce
    names: dict[str, Any] = {"Scene": Scene, "BlockSpec": BlockSpec}
    scene = eval(told.example, names)  # noqa: S307 -- what our own check printed
    # No row is longer than it takes to have one block more than the budget, and there is one row of one head.
    assert len(scene.tokens) == scene.kv_heads == scene.group == 1
    assert scene.last <= (scene.spec.budget + 1) * scene.spec.block
    with pytest.raises(LawBroken, match=re.escape("within-budget")):
        check_selector(Broken(half=OverBudget), laws=["within-budget"], scene=scene)


def test_a_selector_that_breaks_a_law_now_and_then_breaks_it() -> None:
    with pytest.raises(LawBroken, match="law 'same-again' is broken"):
        check_selector(Broken(half=Sometimes), laws=["same-again"], examples=6)


def test_what_is_asked_for_wrongly_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'no-repeats'"):
        check_selector("query", laws=["no-repeat"])
    with pytest.raises(ConfigError, match="no law is left"):
        chosen_laws(SELECTOR_LAWS, ["order"], {"order": "asked"})
    with pytest.raises(UnknownNameError, match="selector='qery'"):
        check_selector("qery", scene=PLAIN)
    with pytest.raises(ConfigError, match="made a int, not a Selector"):
        check_selector(lambda scene: 3, scene=PLAIN)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("qery", {}, "selector='qery' is unknown; did you mean 'query'"),
        (3, {}, "selector=3 must be a Selector, a name"),
        ("query", {"scene": 3}, "scene=3 must be a Scene"), ("query", {"examples": 0}, "examples=0 must be an integer"),
        ("query", {"device": "tpu"}, "device='tpu' is none that kernels run on"),
        (lambda _scene: 3, {}, "made a int, not a Selector"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_before_and_while_scenes_are_drawn(
    given: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_selector(given, **{"examples": 2, **options})


def test_what_a_function_raises_instead_of_making_a_selector_is_told_as_it_is() -> None:
    def make(_scene: Scene) -> Query:
        raise LookupError("no file")

    with pytest.raises(LookupError, match="no file"):
        check_selector(make, examples=2)


def test_a_selector_that_no_scene_suits_is_not_passed() -> None:
    with pytest.raises(ConfigError, match="no scene suits it; it said: lead=9"):
        check_selector(_TooEarly(), examples=3)
    with pytest.raises(ConfigError, match="does not suit the selector"):
        check_selector(_TooEarly(), scene=PLAIN)


class _TooEarly(Broken):
    lead = 9


def test_a_missing_library_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'sparda\[testing\]'"):
        tools.needed("no_such_library")
