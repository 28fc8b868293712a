"""Each law of runtimes refuses the runtime that breaks it, and tells the shortest story that shows it."""

from __future__ import annotations

import ast
import functools
from typing import Any

import pytest

from sparda_core.errors import CombinationError, ConfigError
from sparda_core.runtimes.session import CpuSession
from sparda_core.testing import RUNTIME_LAWS, LawBroken, check_runtime
from tests.testing.broken_runtimes import (
    BROKEN,
    Broken,
    ChoosesForTheFirst,
    LeaksPages,
    NearlyRight,
    NeverCopies,
    ReadsDensely,
)


def test_every_law_has_a_runtime_that_breaks_it() -> None:
    assert BROKEN.keys() == RUNTIME_LAWS.keys()


@pytest.mark.parametrize("law", BROKEN)
def test_a_law_refuses_the_runtime_that_breaks_it(law: str) -> None:
    runtime, story = BROKEN[law]
    with pytest.raises(LawBroken) as broken:
        check_runtime(runtime, story=story)
    assert broken.value.law == law, broken.value
    sound = Broken(kind=CpuSession, policy=runtime.policy, slots=runtime.slots)
    assert law in check_runtime(sound, story=story).held


@pytest.mark.parametrize(
    ("kind", "law", "most"),
    [
        (LeaksPages, "pages", 5), (NeverCopies, "resident-when-attended", 5), (ReadsDensely, "same-selection", 3),
    ],
)  # fmt: skip
def test_stories_that_break_a_law_are_found_and_made_short(kind: type[CpuSession], law: str, most: int) -> None:
    with pytest.raises(LawBroken) as broken:
        check_runtime(Broken(kind=kind), examples=12, steps=8)
    assert broken.value.law == law, broken.value
    story = ast.literal_eval(broken.value.example)
    assert len(story) <= most, story
    assert f"story={broken.value.example})" in broken.value.reproduce
    with pytest.raises(LawBroken) as again:
        check_runtime(Broken(kind=kind), story=story)
    assert again.value.law == law


def test_every_appended_token_is_held_to_the_blocks_that_were_chosen_for_it() -> None:
    story: list[tuple[Any, ...]] = [("add",), ("prefill", 0, [1, 5, 2, 8, 3] * 15, 20), ("append", 0, [4, 6, 4], 2, 7)]
    with pytest.raises(LawBroken) as broken:
        check_runtime(Broken(kind=ChoosesForTheFirst), story=story)
    assert broken.value.law == "same-answer", broken.value
    assert "same-answer" in check_runtime(Broken(kind=CpuSession), story=story).held


def test_a_session_of_another_kind_is_judged_by_what_it_answers() -> None:
    verdict = check_runtime(Broken(kind=_opaque), story=BROKEN["counts"][1])
    assert "same-answer" in verdict.held
    assert verdict.waived["nothing-lost"] == "its session is no CpuSession to look into"
    with pytest.raises(LawBroken, match="law 'same-answer' is broken"):
        check_runtime(Broken(kind=functools.partial(_opaque, of=NearlyRight)), story=BROKEN["counts"][1])


def _opaque(*given: Any, of: type[CpuSession] = CpuSession, **options: Any) -> Any:
    """A session that shows what every Session does, and no more."""
    inside = of(*given, **options)

    class Opaque:
        def __getattr__(self, name: str) -> Any:
            if name in ("tiers", "on_selection", "on_layer", "transferred"):
                raise AttributeError(name)
            return getattr(inside, name)

    return Opaque()


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(CombinationError, match="has no GPU half"):
        check_runtime("resident", device="cuda", story=[])
    with pytest.raises(CombinationError, match="nearest workable choice"):
        check_runtime("offload-prefetch", selector="query", story=[])
    with pytest.raises(ConfigError, match="runtime=3 must be a Runtime, a name, or a function"):
        check_runtime(3)  # type: ignore[arg-type]
    for asked in ({"examples": 0}, {"steps": -1}):
        with pytest.raises(ConfigError, match="must be an integer >= 1"):
            check_runtime("resident", **asked)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="made a int, not a Runtime"):
        check_runtime(lambda: 3, story=[])  # type: ignore[arg-type, return-value]
