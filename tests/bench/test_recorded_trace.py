"""A batch that plays a recording of a small model."""

from __future__ import annotations

import itertools
import json
from typing import Any

import attrs
import numpy as np
import pytest

from sparda_core.bench.decode.cell import recorded_cells
from sparda_core.bench.decode.recorded_trace import recorded_trace
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.cli.main import main
from sparda_core.errors import ConfigError
from sparda_core.selectors.recording import Recorder, Recording, load
from sparda_core.selectors.shipped import recording_names
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.locality_fit import draw
from sparda_core.simulator.residency import Pools
from sparda_core.whatif.scenario import Scenario

SMALL = BlockSpec(sink=1, local=1, budget=8)
WIDE = BlockSpec(sink=1, local=32, budget=96)
SHAPE = ModelShape(
    name="made", layers=4, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=10**6
)
CONTEXT, STEPS = 131072, 90
MODEL = LocalityModel(name="m", title="t", source="s", churn=0.2, reuse=((1.0, 1.0), (4.0, 0.3)), tail=1.0)


def recording(tokens: int = 7800, steps: int = 48) -> Recording:
    drawn = draw(MODEL, SMALL, streams=4 * 2 * 2, tokens=tokens, steps=steps, seed=3)
    recorder = Recorder(shape=SHAPE, spec=SMALL, selector="drawn")
    for chosen, at in zip(drawn.selections, drawn.positions, strict=True):
        recorder.add(np.repeat(at, 2), chosen.reshape(4, 2, 2, -1))
    return recorder.recording()


@pytest.fixture(scope="module")
def trace() -> BatchTrace:
    return recorded_trace(recording(), shape=SHAPE, spec=WIDE, batch=3, context=CONTEXT, steps=STEPS)


def test_every_selection_is_lawful_and_as_large_as_the_budget(trace: BatchTrace) -> None:
    assert trace.selections.shape == (STEPS, 24, 96)
    assert trace.streams.shape == (4, 3, 2)
    assert (np.diff(trace.selections, axis=2) > 0).all()
    for step in (0, 1, 63, STEPS - 1):
        forced = set(WIDE.forced_blocks(CONTEXT + step))
        assert all(forced <= set(row.tolist()) for row in trace.selections[step])
        assert trace.selections[step].max() == (CONTEXT + step) // 64


def test_as_much_of_it_is_new_as_of_the_recording(trace: BatchTrace) -> None:
    """12 x 5 of 62 free blocks of 96 move as 5 free ones of 8 do."""
    def fresh(ids: Any) -> float:
        pairs = zip(ids[1:], ids[:-1], strict=True)
        new = [np.setdiff1d(a, b).size for after, before in pairs for a, b in zip(after, before, strict=True)]
        return float(np.mean(new)) / int(ids.shape[-1])

    # Blocks that leave the local band and those that open are the recording's own affair.
    recorded = fresh(recording().selections.reshape(48, 16, 8))
    assert fresh(trace.selections) == pytest.approx(recorded, rel=0.1)


def test_the_device_is_filled_with_what_was_selected_last(trace: BatchTrace) -> None:
    blocks = WIDE.block_count(CONTEXT)
    for stream in (0, 5):
        every = np.concatenate((trace.before[stream], trace.stack[stream]))
        assert sorted(every.tolist()) == list(range(blocks))
    warm, cold = (Pools(streams=24, slots=192, policy="lru", blocks=blocks + 4) for _ in range(2))
    warm.warm(trace.before, trace.stack)
    missed = [pool.play(trace.selections[0], np.full(24, -1)).mean() for pool in (warm, cold)]
    assert missed[0] < 0.2 * 96 < missed[1]
    assert trace.held(192, "lru").shape == (24, 192)


def test_cells_that_play_a_recording_have_its_churn_and_stand_in_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "decode", "--recording", "smollm2/forecast-8", "--list", "--json"]
    assert main(options) == 0
    played = json.loads(capsys.readouterr().out)
    (churn,) = {cell["churn"] for cell in played}
    assert churn == pytest.approx(Scenario(recording="smollm2/forecast-8").churn_share(), abs=1e-4)
    sides = [{(c["batch"], c["slots"]) for c in played if c["runtime"] == f"offload-{r}"} for r in ("sync", "prefetch")]
    assert sides[0] == sides[1] == set(itertools.product((16, 4, 1, 28), (1.0, 2.0, 4.0)))


@pytest.mark.parametrize("name", recording_names())
def test_every_shipped_recording_fits_the_cells_that_play_it(name: str) -> None:
    (cell, *_) = recorded_cells()
    made = recorded_trace(load(name), shape=cell.model, spec=cell.spec, batch=1, context=cell.context, steps=3)
    assert (np.diff(made.selections, axis=2) > 0).all()


def test_it_is_played_to_its_end_and_back_and_on() -> None:
    short, long = (
        recorded_trace(recording(), shape=SHAPE, spec=attrs.evolve(WIDE), batch=1, context=CONTEXT, steps=steps)
        for steps in (24, 24 + 47 + 3)
    )
    free = long.selections[..., 1:-33]
    np.testing.assert_array_equal(long.selections[:24], short.selections)
    np.testing.assert_array_equal(free[23 + 5], free[23 - 5])
    np.testing.assert_array_equal(free[23 + 47 + 2], free[23 + 47 - 2])


def test_rows_that_cannot_hold_it_are_refused_with_the_length_that_can() -> None:
    with pytest.raises(ConfigError, match=r"context=32768 is too short for 12 recorded streams .* use >= ") as told:
        recorded_trace(recording(), shape=SHAPE, spec=WIDE, batch=1, context=32768, steps=4)
    least = int(str(told.value).rpartition(" ")[2])
    recorded_trace(recording(), shape=SHAPE, spec=WIDE, batch=1, context=least, steps=4)
    with pytest.raises(ConfigError, match="use >="):
        recorded_trace(recording(), shape=SHAPE, spec=WIDE, batch=1, context=least - 1, steps=4)
    with pytest.raises(ConfigError, match="outgrow its budget"):
        recorded_trace(recording(tokens=300), shape=SHAPE, spec=WIDE, batch=1, context=CONTEXT, steps=4)
    with pytest.raises(ConfigError, match="fewer than the recording's 5"):
        recorded_trace(recording(), shape=SHAPE, spec=SMALL.__class__(budget=8), batch=1, context=CONTEXT, steps=4)
