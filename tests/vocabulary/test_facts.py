"""Facts: parts never exceed their whole, steady states add up, files come back equal or are refused."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.shapes import SHAPES, BlockSpec

SHAPE, SPEC = SHAPES["minicpm4.1-8b"], BlockSpec(sink=1, local=32, budget=96)


def steady(**change: Any) -> StepFacts:
    return steady_facts(**{"shape": SHAPE, "spec": SPEC, "batch": 3, "context": 40_000, "churn": 0.1, **change})


@given(batch=st.integers(1, 20), churn=st.floats(0, 1), resident=st.integers(0, 3))
def test_steady_misses_are_the_asked_share_to_one_block(batch: int, churn: float, resident: int) -> None:
    facts = steady(batch=batch, churn=churn, resident_layers=resident)
    offloaded = facts.misses[resident:]
    assert not facts.misses[:resident].any()
    assert abs(offloaded.sum() - churn * SPEC.budget * offloaded.size) <= 1
    assert offloaded.max() - offloaded.min() <= 1
    assert (facts.hits + facts.misses == facts.selected).all()


def test_a_short_context_selects_what_there_is() -> None:
    assert (steady(context=65).selected == 2).all()


@given(batch=st.integers(1, 4), churn=st.floats(0, 1))
def test_facts_survive_json(batch: int, churn: float) -> None:
    facts = steady(batch=batch, churn=churn)
    assert StepFacts.from_json(facts.to_json()) == facts
    assert facts != attrs.evolve(facts, lengths=facts.lengths + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"misses": np.full((32, 3, 2), 97)}, "misses exceeds"),
        ({"late": np.full((32, 3, 2), 11)}, "late exceeds"),
        ({"opened": np.full((32, 3, 2), 90)}, "opened exceeds"),
        ({"wasted": np.full((32, 3, 2), -1)}, "wasted has a negative count"),
        ({"misses": np.zeros((32, 3, 1))}, "misses has shape"),
        ({"active": np.array([True, False, True])}, "inactive row"),
        ({"active": np.array([True])}, "must be"),
    ],
)
def test_facts_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attrs.evolve(steady(), **change)


@pytest.mark.parametrize("change", [{"churn": 1.5}, {"churn": float("nan")}, {"batch": 0}, {"context": 0}])
def test_impossible_steady_states_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        steady(**change)


@pytest.mark.parametrize("text", ["", "3", "{}", '{"new_tokens": 1}', "[" * 100_000])
def test_malformed_facts_are_one_clear_error(text: str) -> None:
    with pytest.raises(RecordingError, match="malformed"):
        StepFacts.from_json(text)
