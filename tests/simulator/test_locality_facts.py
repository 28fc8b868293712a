from __future__ import annotations

import subprocess
import sys

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec, ModelShape, named_shape
from sparda_core.simulator.locality_facts import locality_facts
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.trace_facts import mean_facts
from tests.profiles import share

SHAPE = ModelShape(
    name="small", layers=4, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=10**6
)
SPEC = BlockSpec(sink=1, local=3, budget=16)
MODEL = load_locality("nosa")


def facts_of(**changed: object) -> tuple[StepFacts, ...]:
    asked: dict[str, object] = {"shape": SHAPE, "spec": SPEC, "batch": 3, "context": 9000, "steps": 2} | changed
    return locality_facts(MODEL, **asked)  # type: ignore[arg-type]


def test_each_step_is_one_token_longer_and_covers_every_layer_row_and_head() -> None:
    first, second = facts_of(slots=40, policy="lru", resident_layers=1)
    assert first.selected.shape == (4, 3, 2)
    assert (first.selected == 16).all()
    assert (first.lengths == 9000).all()
    assert (second.lengths == 9001).all()
    assert (first.slots, first.budget, first.new_tokens) == (40, 16, 1)
    assert not first.misses[0].any()
    assert first.misses[1:].any()
    assert not first.late.any()
    assert not first.wasted.any()


def test_the_step_whose_token_opens_a_block_says_so_and_moves_nothing_for_it() -> None:
    before, opening, after = facts_of(context=64 * 100, steps=3)
    assert not before.opened.any()
    assert (opening.opened == 1).all()
    assert not after.opened.any()
    assert opening.misses.sum() == pytest.approx(0.056 * 16 * 24, abs=2)


def test_a_row_that_fits_into_its_budget_misses_nothing() -> None:
    for facts in facts_of(context=16 * 64 - 1, steps=2):
        assert (facts.selected == 16).all()
        assert not facts.misses.any()
    assert (facts_of(context=65, steps=1)[0].selected == 2).all()


def test_where_every_layer_is_resident_there_are_no_slots_and_no_misses() -> None:
    (facts,) = facts_of(resident_layers=4, steps=1)
    assert facts.slots == 0
    assert not facts.misses.any()


@settings(deadline=None, max_examples=share(30))
@given(
    churn=st.floats(0, 0.6), times=st.integers(1, 4), batch=st.integers(1, 5),
    policy=st.sampled_from(("last-selection", "lru")),
)  # fmt: skip
def test_a_steady_step_has_the_mean_misses_to_one_block_a_layer(
    churn: float, times: int, batch: int, policy: str
) -> None:
    model = attrs.evolve(MODEL, churn=churn)
    (steady,) = locality_facts(
        model, shape=SHAPE, spec=SPEC, batch=batch, context=9000, slots=16 * times, policy=policy, steady=True
    )
    (wide,) = locality_facts(
        model, shape=attrs.evolve(SHAPE, layers=64), spec=SPEC, batch=8, context=9000, slots=16 * times, policy=policy,
        steady=True,
    )  # fmt: skip
    mean = wide.misses.mean()
    assert (abs(steady.misses.sum((1, 2)) - mean * batch * 2) <= 1).all()
    assert mean <= churn * 16 + 0.01
    if policy == "last-selection" or times == 1:
        assert mean == pytest.approx(churn * 16, abs=0.01)


def test_steady_steps_are_all_the_same() -> None:
    first, second = facts_of(steady=True)
    assert first == second
    assert not first.opened.any()


def test_the_mean_of_many_steps_is_the_steady_step() -> None:
    steps = facts_of(batch=16, steps=40, slots=32, policy="lru")
    steady = facts_of(batch=16, steps=1, slots=32, policy="lru", steady=True)[0]
    assert mean_facts(steps).misses.mean() == pytest.approx(steady.misses.mean(), abs=0.02)


def test_rows_that_share_a_stream_see_it_at_different_steps() -> None:
    first, second = facts_of(batch=128, slots=32, policy="lru")
    now, next_step = (facts.misses.reshape(16, 64) for facts in (first, second))
    np.testing.assert_array_equal(next_step[:-1], now[1:])
    assert (now[0] != now[1]).any()


def test_a_row_that_outgrows_its_budget_begins_to_miss() -> None:
    model = attrs.evolve(MODEL, churn=0.2)
    facts = locality_facts(model, shape=SHAPE, spec=SPEC, batch=4, context=64 * 15, slots=16, steps=64 * 6)
    misses = [int(step.misses.sum()) for step in facts]
    assert not any(misses[: 64 + 1])
    assert misses[-1] == pytest.approx(0.2 * 16 * 32, abs=1)


def test_seeds_are_independent_and_each_gives_the_same_facts_again() -> None:
    one, again, other = (facts_of(seed=seed, slots=32, policy="lru") for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_another_process_gives_the_same_facts() -> None:
    code = (
        "from tests.simulator.test_locality_facts import facts_of\n"
        "import sys; sys.stdout.write(facts_of(slots=32, policy='lru', seed=3)[1].to_json())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}, capture_output=True,
            text=True, check=True, timeout=300,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert told[0] == told[1] == facts_of(slots=32, policy="lru", seed=3)[1].to_json()


def test_the_models_texts_change_no_miss() -> None:
    renamed = attrs.evolve(MODEL, name="other", source="elsewhere")
    asked = {"shape": SHAPE, "spec": SPEC, "batch": 3, "context": 9000, "steps": 2}
    assert locality_facts(renamed, **asked) == facts_of()  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [2**17, 2**21, 2**31 - 2])
def test_a_context_of_any_length_is_played(context: int) -> None:
    (facts,) = locality_facts(
        MODEL, shape=named_shape("minicpm4.1-8b"), spec=BlockSpec(sink=1, local=32, budget=96), batch=2,
        context=context, slots=192, policy="lru", steady=True,
    )  # fmt: skip
    assert facts.lengths.tolist() == [context, context]
    assert facts.misses.sum() / facts.selected.sum() == pytest.approx(0.056 * 0.4467, abs=0.001)


def test_more_slots_than_blocks_leave_nothing_to_miss() -> None:
    (facts,) = facts_of(slots=2**31 - 1, policy="lru", steps=1, steady=True)
    assert facts.slots == 2**31 - 1
    assert not facts.misses.any()


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ({"slots": 15}, ConfigError, "slots=15 must be >= budget=16"),
        ({"policy": "lro"}, UnknownNameError, "did you mean 'lru'"),
        ({"batch": 0}, ConfigError, "batch=0 must be an integer >= 1"),
        ({"context": 2.5}, ConfigError, "context=2.5 must be an integer"),
        ({"steps": 0}, ConfigError, "steps=0"),
        ({"seed": -1}, ConfigError, "seed=-1"),
        ({"resident_layers": 5}, ConfigError, "resident_layers=5 must be <= layers=4"),
        ({"batch": 10**8}, ConfigError, "batch=100000000 must be <="),
        ({"context": 16 * 64 + 1, "spec": BlockSpec(sink=0, local=3, budget=17)}, None, ""),
    ],
)
def test_what_cannot_be_played_is_refused(
    asked: dict[str, object], kind: type[Exception] | None, told: str
) -> None:
    if kind is None:
        facts_of(**asked)
        return
    with pytest.raises(kind, match=told):
        facts_of(**asked)


def step(misses: list[int], **other: object) -> StepFacts:
    count = np.array(misses).reshape(1, 1, -1)
    fields: dict[str, object] = {
        "new_tokens": 1, "budget": 4, "slots": 4, "active": [True], "lengths": [9], "selected": np.full_like(count, 4),
        "misses": count, "opened": count * 0, "late": count * 0, "wasted": count * 0,
    }  # fmt: skip
    return StepFacts(**(fields | other))  # type: ignore[arg-type]


def test_a_mean_carries_fractions_on_and_keeps_the_sum() -> None:
    mean = mean_facts([step([1, 0, 2, 4]), step([2, 1, 1, 4])])
    assert mean.misses.ravel().tolist() == [1, 1, 1, 4]
    assert mean.selected.ravel().tolist() == [4, 4, 4, 4]


def test_a_mean_needs_steps_that_belong_together() -> None:
    with pytest.raises(ConfigError, match="facts is empty"):
        mean_facts([])
    with pytest.raises(ConfigError, match="have no mean"):
        mean_facts([step([1, 0]), step([1, 0], slots=8)])
