"""Decisions: what bench/validate works out of the judged predictions, held to bars and told in words."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import Run
from sparda_core.bench.validate.record import Measured, Record
from sparda_core.bench.verdict.decide import BOUNDS, decided, decision_bars, decisions_table
from sparda_core.bench.verdict.judged import Judged, Verdict
from tests.bench.verdict.cells import judged, verdict

FACTS = CompactFacts(
    layers=1, batch=1, kv_heads=1, budget=1, slots=1, lengths=[1], selected=[1], opened=[0], misses=[[1]]
)


def one(measured: float, error: float, group: str, **cell: Any) -> Judged:
    return judged(measured=measured, error=error, groups=(group,), cell=cell)


def whole(*cells: Judged) -> Verdict:
    records = [
        Record(
            cell=cell.of, tier=cell.tier, stratum=cell.stratum, groups=cell.groups,
            measured=Measured(rounds_s=[[cell.measured_s or 1.0]], facts=FACTS, block_bytes=1.0),
        )
        for cell in cells
    ]  # fmt: skip
    return attrs.evolve(verdict(*cells), decisions=decided(Run(records=records), cells))


def bars(found: Verdict) -> dict[str, bool]:
    return {bar.bar.name.removeprefix("decisions: "): bar.bar.met for bar in decision_bars(found)}


def test_combinations_are_put_in_order_by_the_predictions_that_are_judged() -> None:
    found = whole(
        one(0.010, 0.0, "combinations x", selector="query", runtime="offload-sync"),
        one(0.008, 0.0, "combinations x", runtime="offload-sync"), one(0.0078, -0.05, "combinations x"),
        one(0.005, 0.0, "combinations x", runtime="resident"),
    )  # fmt: skip
    # Prefetch is truly 2.6 % ahead of sync, and predicted to be 2.6 % behind: one of six pairs.
    rows = {row["kind"]: row for row in found.decisions}
    assert rows["tau"]["figure"] == pytest.approx(4 / 6)
    assert rows["regret"]["figure"] == 0
    assert bars(found) == {"Kendall's tau": False, "regret": True}
    order, choice = decisions_table(found).lines
    assert "wrong: forecast prefetch" in order[-1]
    assert choice[-1].startswith("recommended and best of 4: forecast resident")


def test_a_bar_is_on_the_worst_decision_of_its_kind() -> None:
    good = [one(m, 0.0, "combinations a", batch=b) for m, b in ((0.01, 1), (0.02, 2))]
    bad = [one(m, e, "combinations b", batch=b) for m, e, b in ((0.010, 0.5, 4), (0.030, 0.0, 16))]
    (bar,) = [bar for bar in decision_bars(whole(*good, *bad)) if "regret" in bar.bar.name]
    assert (bar.cells, bar.bar.met) == (2, False)
    assert bar.bar.where == "worst: choice among combinations b"


def test_every_kind_of_decision_has_a_bar_and_words() -> None:
    rows: tuple[dict[str, Any], ...] = (
        {"decision": "o", "kind": "tau", "figure": 0.8, "options": 3, "pairs": 3, "level": 0, "wrong": [["a", "b"]]},
        {"decision": "c", "kind": "regret", "figure": 0.05, "options": 2, "recommended": "a", "best": "b"},
        {"decision": "x", "kind": "crossover", "figure": 2, "grid": [1, 2], "measured_at": None, "predicted_at": 1},
        {"decision": "s", "kind": "slope", "figure": 0.2, "measured": -0.5, "predicted": -0.3},
    )
    found = attrs.evolve(verdict(judged()), decisions=rows)
    assert bars(found) == {name: False for name, _, _ in BOUNDS.values()}
    words = [line[-1] for line in decisions_table(found).lines]
    for told, text in zip(("a beats b", "best b", "measured never, predicted at 1 rows", "-0.50"), words, strict=True):
        assert told in text
    assert all("**no**" in line[2] for line in decisions_table(found).lines)


def test_what_has_no_prediction_decides_nothing() -> None:
    lone = Judged(key="k", tier="axis", stratum="link", cell=judged().cell, groups=("combinations x",), measured_s=1.0)
    assert whole(lone).decisions == ()
    assert decisions_table(whole(lone)).lines == ()
