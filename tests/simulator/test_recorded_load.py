"""Shares that a recording misses, taken over to other shapes."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from sparda_core.errors import ConfigError
from sparda_core.selectors.recording import Recorder, Recording
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.locality_fit import draw
from sparda_core.simulator.recorded_load import load_facts, recorded_shares
from sparda_core.simulator.trace_facts import recorded_facts

SPEC = BlockSpec(sink=1, local=3, budget=32)
WIDE = attrs.evolve(SPEC, budget=96, local=32)
SHAPE = ModelShape(
    name="made", layers=4, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=10**6
)
DEEP = attrs.evolve(SHAPE, layers=8)
MODEL = LocalityModel(name="m", title="t", source="s", churn=0.1, reuse=((1.0, 1.0), (4.0, 0.25)), tail=1.0)
STEPS = 24


def recording(tokens: int = 20_000) -> Recording:
    drawn = draw(MODEL, SPEC, streams=4 * 2 * 2, tokens=tokens, steps=STEPS, seed=1)
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="drawn")
    for chosen, at in zip(drawn.selections, drawn.positions, strict=True):
        recorder.add(np.repeat(at, 2), chosen.reshape(4, 2, 2, -1))
    return recorder.recording()


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return recording()


@pytest.mark.parametrize(("policy", "times"), [("last-selection", 1), ("lru", 1), ("lru", 2), ("lru", 4)])
def test_a_load_like_the_recorded_one_has_its_misses_step_by_step(recorded: Recording, policy: str, times: int) -> None:
    shares = recorded_shares(recorded, slots=times * 32, budget=32, policy=policy)
    made = load_facts(shares, shape=SHAPE, spec=SPEC, batch=2, context=20_000, slots=times * 32, steps=STEPS // 2)
    met = recorded_facts(recorded, slots=times * 32, policy=policy, skip=STEPS // 2)
    for ours, theirs in zip(made, met, strict=True):
        np.testing.assert_array_equal(ours.misses, theirs.misses)


def test_a_larger_selection_misses_the_same_share_of_it_layer_by_layer(recorded: Recording) -> None:
    shares = recorded_shares(recorded, slots=2 * 96, budget=96, policy="lru")
    (made,) = load_facts(shares, shape=DEEP, spec=WIDE, batch=8, context=131072, slots=192, resident_layers=1)
    assert not made.misses[0].any()
    for layer in range(1, 8):
        wanted = shares.shares[:, layer // 2].mean() * 96 * 8 * 2
        assert made.misses[layer].sum() == pytest.approx(wanted, abs=1.01)
    assert made.misses.sum() < 96 * 0.1 * 7 * 16


def test_rows_beyond_the_recorded_ones_play_them_later(recorded: Recording) -> None:
    shares = recorded_shares(recorded, slots=32, budget=32, policy="last-selection")
    steps = load_facts(shares, shape=SHAPE, spec=SPEC, batch=4, context=20_000, slots=32, steps=STEPS)
    now = np.stack([step.misses for step in steps])
    np.testing.assert_array_equal(now[:12], now[12:], "it begins again at its end")
    assert (now[:, :, 2:] != now[:, :, :2]).any()
    np.testing.assert_array_equal(np.roll(now[:12, :, :2], -(37 % 12), axis=0), now[:12, :, 2:])


def test_no_more_than_the_free_blocks_are_missed(recorded: Recording) -> None:
    full = attrs.evolve(recorded_shares(recorded, slots=32, budget=32, policy="lru"), shares=np.ones((1, 4, 2, 2)))
    (made,) = load_facts(full, shape=SHAPE, spec=WIDE, batch=1, context=131072, slots=96)
    assert (made.misses == WIDE.free).all()


def test_a_recording_that_chose_nothing_is_no_load() -> None:
    with pytest.raises(ConfigError, match="nothing was chosen"):
        recorded_shares(recording(tokens=600), slots=96, budget=96, policy="lru")
