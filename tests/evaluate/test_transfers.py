from __future__ import annotations

import attrs
import numpy as np
import pytest

from sparda_core.errors import ConfigError
from sparda_core.evaluate.transfers import summarise
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(name="t", layers=3, hidden=8, ffn=8, q_heads=2, kv_heads=2, head_dim=4, vocab=9, context=999)
SPEC = BlockSpec(block=4, window=4, stride=2, sink=1, local=1, budget=6)


def test_sums_equal_a_count_by_hand() -> None:
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=2, context=80, churn=0.5, resident_layers=1)
    late = np.minimum(facts.misses, 1)
    got = summarise([attrs.evolve(facts, late=late, wasted=late)] * 3, spec=SPEC, block_bytes=128, resident_layers=1)
    cells = 2 * 2 * 2 * 3  # layers x rows x heads x steps
    assert (got.steps, got.selected, got.misses) == (3, 6 * cells, 3 * cells)
    assert got.free == 3 * cells  # 6 selected, 3 forced: the sink, the block before and the current one
    assert (got.late, got.wasted, got.opened) == (cells, cells, 0)
    assert got.moved_bytes == 3 * cells * 128
    assert got.hit_rate_all == pytest.approx(0.5)
    assert got.hit_rate_free == pytest.approx(0)
    assert got.late_share == got.wasted_share == pytest.approx(1 / 3)
    assert got.moved_bytes_per_step == cells * 128


def test_an_inactive_row_adds_nothing() -> None:
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=2, context=80, churn=0.5)
    still = np.ones((3, 2, 2))
    still[:, 1] = 0
    half = StepFacts(
        new_tokens=1, budget=6, slots=6, active=[True, False], lengths=[80, 0], selected=facts.selected * still,
        misses=facts.misses * still, opened=0 * still, late=0 * still, wasted=0 * still,
    )  # fmt: skip
    assert summarise([half], spec=SPEC, block_bytes=1).free == summarise([facts], spec=SPEC, block_bytes=1).free / 2


def test_a_resident_run_has_no_shares_and_a_prefill_is_refused() -> None:
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=1, context=80, churn=0)
    assert np.isnan(summarise([facts], spec=SPEC, block_bytes=1, resident_layers=3).hit_rate_all)
    with pytest.raises(ConfigError, match="new_tokens=4"):
        summarise([attrs.evolve(facts, new_tokens=4)], spec=SPEC, block_bytes=1)
