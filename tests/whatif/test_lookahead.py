from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.backends import serial
from sparda_core.whatif.lookahead import AHEAD, SAME, lookahead_figures, lookahead_grid, lookahead_tables
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.studies import STUDIES, study_named
from sparda_core.whatif.study import Study, run_grid
from tests.whatif.fakes import prediction, short_of


def by_hand(scenario: Scenario) -> Any:
    """A step of 10 ms and a copy: hidden up to 10 ms with lookahead, on top of the step without."""
    copy_ms = 60 * scenario.batch / (scenario.link_gb_s or 1) / (scenario.slot_factor or 1)
    if scenario.runtime == "offload-prefetch":
        step_ms = max(10.0, copy_ms)
    else:
        step_ms = 10.0 + copy_ms + (1.0 if scenario.selector == "query" else 0.0)
    return prediction(scenario.batch * 1e3 / step_ms, short_of() if scenario.batch > 16 else None)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(Scenario, "predict", by_hand)
    return run_grid(lookahead_grid(Scenario(), {"batch": (1, 16, 32), "link_gb_s": (12.0, 96.0)}))


def test_the_grid_has_pools_methods_batches_and_links_on_a_synthetic_locality() -> None:
    grid = lookahead_grid(Scenario(), {})
    assert [axis.name for axis in grid.axes] == ["pool", "method", "batch", "pcie"]
    assert grid.base.locality == "hisparse"
    pools = grid.axis("pool").settings
    assert [(one["policy"], one["slot_factor"]) for one in pools] == [
        ("last-selection", 1.0), ("lru", 1.0), ("lru", 2.0), ("lru", 4.0)
    ]  # fmt: skip


def test_a_link_that_is_given_takes_the_place_of_the_generations() -> None:
    def names(base: Scenario, axes: dict[str, Any]) -> list[str]:
        return [axis.name for axis in lookahead_grid(base, axes).axes]

    assert names(Scenario(), {"link_gb_s": (10.0,)}) == ["pool", "method", "batch", "link_gb_s"]
    assert names(Scenario(link_gb_s=10.0), {}) == names(Scenario(pcie=4), {}) == ["pool", "method", "batch"]
    assert names(Scenario(profile="gh200"), {}) == ["pool", "method", "batch"]  # its link has no generation


def test_an_axis_that_the_study_turns_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="the study lookahead varies batch"):
        lookahead_grid(Scenario(), {"runtime": ("resident",)})


def test_gains_are_those_of_the_formula(study: Study) -> None:
    _, matrix, _, points, *_ = lookahead_tables(study, serial, None)
    row = next(r for r in matrix.records() if r["pool"] == "4x lru" and r["link_gb_s"] == 96.0)
    assert row["batch 1"] == pytest.approx((10 + 60 / 96 / 4) / 10, rel=1e-3)
    assert row["batch 16"] == pytest.approx((10 + 60 * 16 / 96 / 4) / 10, rel=1e-3)
    assert row["batch 32"] is None
    short = [r for r in points.records() if r["batch"] == 32]
    assert all(r["tokens_per_s"] is None and "'host' needs 200" in r["reason"] for r in short)
    first = points.records()[0]
    assert first[f"times {SAME}"] == pytest.approx((10 + 5) / 10)


def test_slots_alone_are_held_against_lookahead_on_the_last_selection(study: Study) -> None:
    instead = lookahead_tables(study, serial, None)[2]
    by_pool = {(row["pool"], row["link_gb_s"]): row for row in instead.records()}
    assert {pool for pool, _ in by_pool} == {"1x lru", "2x lru", "4x lru"}
    assert by_pool["4x lru", 12.0]["batch 1"] == pytest.approx(10 / (10 + 60 / 12 / 4), rel=1e-3)
    assert by_pool["4x lru", 12.0]["batch 16"] == pytest.approx(80 / (10 + 80 / 4), rel=1e-3)


def test_each_multiple_of_slots_says_gain_exposure_and_memory(study: Study) -> None:
    by_pool = lookahead_tables(study, serial, None)[0]
    assert [row[0] for row in by_pool.rows] == ["1x last-selection", "1x lru", "2x lru", "4x lru"]
    assert by_pool.records()[0]["pays (5% or more)"] == "4 of 4"
    # 60 / 96 / 4 ms of a 10 ms step are no 5 %.
    assert by_pool.records()[3]["pays (5% or more)"] == "3 of 4"
    assert AHEAD in by_pool.title
    assert any("synthetic locality" in note and "not calibrated" in note for note in by_pool.notes)


def test_crossovers_are_where_the_formula_has_them(study: Study) -> None:
    *_, links, batches = lookahead_tables(study, serial, None)
    says = {(row[0], row[1]): row[2] for row in links.rows}
    assert links.columns[:2] == ("pool", "batch")
    # The gain ends where the copy takes less than half a millisecond of ten: at 60 * batch / slots / 0.5 GB/s.
    assert says["4x lru", 1].startswith("pays, from 30.")
    assert says["1x lru", 1] == "none in range: pays from 0.5 to 60.1"
    assert "from 0.5 to 60.1" in links.title  # PCIe 5 x16 carries no more
    by_batch = {(row[0], row[1]): row[2] for row in batches.rows}
    assert by_batch["4x lru", 96.0].startswith("does not pay, from 4 pays")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_figure_has_a_panel_a_link_and_a_line_a_pool(study: Study) -> None:
    figure = lookahead_figures(study)["lookahead"]
    assert [axes.get_title() for axes in figure.axes] == [
        "host link, GB/s each way: 12.0", "host link, GB/s each way: 96.0"
    ]  # fmt: skip
    assert {"1x last-selection", "1x lru", "2x lru", "4x lru"} <= {line.get_label() for line in figure.axes[0].lines}
    assert "synthetic locality" in figure.get_suptitle()


def test_the_real_simulator_moves_fewer_blocks_the_more_slots_there_are() -> None:
    grid = lookahead_grid(Scenario(context=16384), {"batch": (1,), "link_gb_s": (25.0,)})
    moved = [row.misses or 0 for row in run_grid(grid).rows if row.labels["method"] == AHEAD]
    assert moved[0] == pytest.approx(moved[1], rel=0.02)
    assert moved[1] > 1.8 * moved[2] > 1.8 * 1.5 * moved[3]


def test_studies_are_found_by_name_and_ask_a_question() -> None:
    assert study_named("lookahead").question.endswith("?")
    assert set(STUDIES) == {"lookahead"}
    with pytest.raises(UnknownNameError, match="did you mean 'lookahead'"):
        study_named("look-ahead")
