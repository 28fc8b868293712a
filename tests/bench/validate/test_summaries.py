"""Errors by tier and stratum, and decisions of a run."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.decided import decisions
from sparda_core.bench.validate.folder import Run
from sparda_core.bench.validate.record import Measured, Predicted, Record
from sparda_core.bench.validate.summary import errors, ninth_decile
from sparda_core.bench.verdict.limits import STATISTICS

FACTS = CompactFacts(
    layers=1, batch=8, kv_heads=2, budget=96, slots=96, lengths=(4097,), selected=(64,), opened=(0,), misses=((50,),)
)
MEASURED = Measured(rounds_s=((0.01,), (0.0102,)), facts=FACTS, confirmed=1, block_bytes=32768.0)


def record(step_s: float, predicted_s: float | None, *groups: str, tier: str = "axis", **cell: Any) -> Record:
    usual = ValidationCell(selector="forecast", runtime="offload-prefetch", batch=8, context=4096)
    return Record(
        cell=attrs.evolve(usual, **cell), tier=tier, stratum="link", groups=groups,
        measured=attrs.evolve(MEASURED, rounds_s=((step_s,),)), predicted={"drawn": Predicted(step_s=predicted_s)},
    )  # fmt: skip


def test_the_ninth_decile_lies_between_two_values_in_proportion() -> None:
    assert ninth_decile([3.0, 1.0, 2.0]) == pytest.approx(2.8)
    assert ninth_decile([float(n) for n in range(1, 12)]) == 10.0
    assert ninth_decile([5.0]) == 5.0


def test_the_command_and_the_report_tell_one_ninth_decile() -> None:
    values = [0.01, 0.02, 0.03, 0.2]
    rows = errors([record(0.01 * (1 + error), 0.01, batch=n) for n, error in enumerate(values, 1)])
    whole = next(row for row in rows if row["stratum"] is None)
    assert whole["p90"] == pytest.approx(STATISTICS["p90"](values)) == pytest.approx(0.149)


def test_errors_are_told_by_tier_and_stratum_and_what_has_none_is_counted() -> None:
    rows = errors([record(0.011, 0.01), record(0.009, 0.01, batch=4), record(0.01, None, batch=2)])
    whole = next(row for row in rows if row["stratum"] is None)
    assert (whole["tier"], whole["way"], whole["cells"], whole["without"]) == ("axis", "drawn", 2, 1)
    assert whole["median"] == pytest.approx(0.1)
    assert whole["signed_mean"] == pytest.approx(0.0)
    assert {row["stratum"] for row in rows} == {None, "link"}
    assert errors([attrs.evolve(record(0.01, 0.01), measured=None)]) == []


def test_the_order_of_combinations_and_what_is_chosen_are_judged() -> None:
    group = "combinations b8 4K"
    run = Run(records=[
        record(0.010, 0.010, group), record(0.012, 0.009, group, runtime="offload-sync"),
        record(0.020, 0.021, group, selector="query", runtime="offload-sync"),
    ])  # fmt: skip
    order, choice = decisions(run)
    assert (order["kind"], order["figure"], order["pairs"]) == ("tau", pytest.approx(1 / 3), 3)
    assert order["wrong"] == [["forecast prefetch b8 4K churn 10% last-selection x1",
                               "forecast sync b8 4K churn 10% last-selection x1"]]  # fmt: skip
    assert choice["figure"] == pytest.approx(1 - 0.010 / 0.012)


def test_of_settings_predicted_level_the_one_with_fewest_ctas_is_chosen() -> None:
    group = "copies b8 4K"

    def with_ctas(ctas: int, step_s: float, predicted_s: float) -> Record:
        one = record(step_s, predicted_s, group, ctas=ctas)
        assert one.measured is not None
        return attrs.evolve(one, measured=attrs.evolve(one.measured, copy_ctas=ctas))

    (choice,) = decisions(Run(records=[with_ctas(8, 0.0100, 0.00999), with_ctas(2, 0.0101, 0.01)]))
    assert "2 CTAs" in choice["recommended"]
    assert choice["figure"] == pytest.approx(1 - 0.0100 / 0.0101)


def test_a_crossover_is_compared_on_the_grid_that_both_have() -> None:
    records = []
    late: dict[str, Any] = {"runtime": "offload-sync", "slots": 2.0, "policy": "lru"}
    for batch, early_s, late_s, told_s in (
        (8, 0.010, 0.012, 0.012), (16, 0.014, 0.015, 0.013), (24, 0.018, 0.017, 0.017),
    ):  # fmt: skip
        records.append(record(early_s, early_s, "crossover 4K", batch=batch))
        records.append(record(late_s, told_s, "crossover 4K", batch=batch, **late))
    (row,) = decisions(Run(records=records))
    assert (row["measured_at"], row["predicted_at"], row["figure"]) == (24, 16, 1)
    assert row["grid"] == [8, 16, 24]


def test_slopes_are_taken_by_what_the_link_must_give() -> None:
    plain = record(0.010, 0.010, "slope background")
    beside = record(0.012, 0.011, "slope background", background_gb_s=10.0)
    assert beside.measured is not None
    beside = attrs.evolve(beside, measured=attrs.evolve(beside.measured, background_bytes_per_s=11e9))
    (row,) = decisions(Run(records=[beside, plain]))
    assert row["measured"] < row["predicted"] < 0
    assert row["figure"] == pytest.approx(row["predicted"] - row["measured"])
