from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.evaluate.churn import ChurnTally
from sparda_core.shapes import BlockSpec
from tests.evaluate.cases import draw_selection

SPEC = BlockSpec(block=4, window=4, stride=2, sink=1, local=1, budget=6)


@given(seed=st.integers(0, 10**6))
def test_churn_equals_a_loop_over_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.integers(-1, 80, (3, 1))
    before = draw_selection(rng, positions - 1, 2, SPEC, SPEC.budget)
    now = draw_selection(rng, positions, 2, SPEC, SPEC.budget)
    fresh = selected = fresh_free = free = 0
    for (b, h), _ in np.ndenumerate(now[:, :, 0, 0]):
        position = int(positions[b, 0])
        if position < 0:
            continue
        new, old = ({int(i) for i in ids[b, h, 0] if i >= 0} for ids in (now, before))
        open_ids = new - set(SPEC.forced_blocks(position))
        fresh, selected = fresh + len(new - old), selected + len(new)
        fresh_free, free = fresh_free + len(open_ids - old), free + len(open_ids)
    tally = ChurnTally(spec=SPEC)
    tally.add(now, before, positions)
    got = tally.result()
    assert got.count == selected
    assert math.isnan(got.all) if not selected else got.all == pytest.approx(fresh / selected)
    assert math.isnan(got.free) if not free else got.free == pytest.approx(fresh_free / free)


def test_the_same_selection_again_churns_nothing() -> None:
    positions = np.array([[50]])
    ids = draw_selection(np.random.default_rng(0), positions, 2, SPEC, SPEC.budget)
    tally = ChurnTally(spec=SPEC)
    tally.add(ids, ids, positions)
    assert tally.result().all == 0


def test_selections_of_different_rows_are_refused() -> None:
    ids = np.full((2, 1, 1, 4), -1, np.int32)
    with pytest.raises(ConfigError, match="must agree"):
        ChurnTally(spec=SPEC).add(ids, ids[:1], np.zeros((2, 1), np.int64))
