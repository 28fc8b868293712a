"""Decisions: what a group asks is told by what varies in it."""

from __future__ import annotations

from typing import Any

import pytest

from sparda_core.bench.verdict.decide import decision_bars, decisions, decisions_table
from sparda_core.bench.verdict.judged import Judged
from tests.bench.verdict.cells import judged, verdict


def one(measured: float, error: float, **cell: Any) -> Judged:
    return judged(measured=measured, error=error, groups=("g",), cell=cell)


def test_pairs_at_one_load_are_put_in_order() -> None:
    cells = [
        one(0.010, 0.0, selector="query", runtime="offload-sync"), one(0.008, 0.0, runtime="offload-sync"),
        one(0.0079, -0.05), one(0.005, 0.0, runtime="resident"),
    ]  # fmt: skip
    (found,) = decisions(verdict(*cells))
    assert (found.asks, found.cells) == ("order", 4)
    # Six pairs; prefetch is truly 1.3 % ahead of sync, and predicted to be 4 % behind.
    assert found.figures["Kendall's tau"][0] == pytest.approx((5 - 1) / 6)
    assert found.figures["regret"][0] == 0
    assert "forecast resident" in found.told
    assert "in the wrong order: forecast prefetch" in found.told
    bars = {bar.bar.name: bar.bar.met for bar in decision_bars(verdict(*cells))}
    assert bars == {"order: regret": True, "order: Kendall's tau": False}


def test_what_the_machine_does_not_repeat_is_level() -> None:
    cells = [
        judged(measured=m, error=e, groups=("g",), repeatability=0.02, cell={"runtime": r})
        for m, e, r in ((0.010, 0.0, "offload-sync"), (0.0099, -0.05, "offload-prefetch"), (0.005, 0.0, "resident"))
    ]
    (found,) = decisions(verdict(*cells))
    assert found.figures["Kendall's tau"][0] == 1


def test_settings_of_one_pair_cost_what_the_recommended_one_gives_away() -> None:
    cells = [one(m, e, ctas=ctas) for m, e, ctas in ((0.0100, 0.08, 2), (0.0095, 0.0, 4), (0.0102, 0.0, 16))]
    (found,) = decisions(verdict(*cells))
    assert found.asks == "settings"
    assert found.figures["regret"][0] == pytest.approx(1 - 95 / 100)
    assert "2 CTAs; best: " in found.told
    assert not decision_bars(verdict(*cells))[0].bar.met


def test_two_pairs_along_the_batch_cross_somewhere() -> None:
    cells = []
    for batch, resident, early, predicted in ((1, 5, 6, 6), (4, 7, 7.5, 6.5), (8, 9, 8.5, 8.5)):
        cells += [
            one(resident * 1e-3, 0.0, runtime="resident", batch=batch),
            one(early * 1e-3, early / predicted - 1, batch=batch),
        ]  # fmt: skip
    (found,) = decisions(verdict(*cells))
    assert found.asks == "crossover"
    assert found.figures["grid steps apart"][0] == 1
    assert "measured b8, predicted b4" in found.told


def test_a_surrogate_for_the_link_has_a_slope() -> None:
    # Four times the bytes: measured half as fast, predicted as fast as before.
    cells = [
        judged(measured=m, error=e, groups=("g",), moved_bytes=moved, cell={"block": block})
        for m, e, moved, block in ((0.01, 0.0, 1e8, 64), (0.02, 1.0, 4e8, 256))
    ]
    (found,) = decisions(verdict(*cells))
    assert found.asks == "slope"
    assert found.figures["slope apart, most"][0] == pytest.approx(0.5)
    assert "-0.50 measured, +0.00 predicted" in found.told


def test_a_group_of_one_cell_or_without_predictions_decides_nothing() -> None:
    lone = Judged(key="k", tier="axis", stratum="link", cell=judged().cell, groups=("g",), measured_s=1.0)
    assert decisions(verdict(one(0.01, 0.0), lone)) == []
    assert decisions_table(verdict(lone)).lines == ()
