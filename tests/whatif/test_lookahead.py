from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.backends import serial
from sparda_core.whatif.lookahead import AHEAD, CONTEXTS, HEADLINE, SAME, TRACES, lookahead_grid, machines
from sparda_core.whatif.lookahead_figures import lookahead_figures
from sparda_core.whatif.lookahead_tables import lookahead_tables
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
    base = Scenario(locality="hisparse", context=2**16)
    return run_grid(lookahead_grid(base, {"batch": (1, 16, 32), "link_gb_s": (12.0, 96.0)}))


def names(base: Scenario, axes: dict[str, Any] | None = None) -> list[str]:
    return [axis.name for axis in lookahead_grid(base, axes or {}).axes]


def test_the_usual_grid_is_over_traces_machines_contexts_pools_and_batches() -> None:
    grid = lookahead_grid(Scenario(), {})
    assert [axis.name for axis in grid.axes] == ["trace", "machine", "context", "pool", "method", "batch"]
    assert grid.axis("context").labels == CONTEXTS == (32768, 131072, 524288, 1048576)
    pools = grid.axis("pool").settings
    assert [(one["policy"], one["slot_factor"]) for one in pools] == [
        ("last-selection", 1.0), ("lru", 2.0), ("lru", 4.0), ("score", 2.0), ("score", 4.0)
    ]  # fmt: skip
    for label in grid.axis("trace").labels:
        trace = TRACES[label]
        assert len(trace) == 1


def test_every_machine_copies_with_as_many_thread_blocks_as_fill_its_link() -> None:
    found = machines()
    assert {"H200", "H200, PCIe 3", "H200, PCIe 6", "H100", "GH200"} <= found.keys()
    assert found["GH200"]["ctas"] > found["H200, PCIe 6"]["ctas"] > found[HEADLINE]["ctas"] >= 2


def test_what_is_given_is_no_axis_and_only_a_recording_has_scores() -> None:
    link = {"link_gb_s": (10.0,)}
    assert names(Scenario(), link) == ["trace", "context", "pool", "method", "batch", "link_gb_s"]
    assert names(Scenario(link_gb_s=10.0)) == names(Scenario(pcie=4)) == ["trace", "context", "pool", "method", "batch"]
    assert names(Scenario(profile="gh200")) == names(Scenario(pcie=4))  # its link has no generation
    assert names(Scenario(profile="h100-sxm")) == ["trace", "pcie", "context", "pool", "method", "batch"]
    assert names(Scenario(context=65536, batch=3)) == ["trace", "machine", "pool", "method"]
    assert names(Scenario(), {"context": (65536,)})[-1] == "context"
    synthetic, churning = (lookahead_grid(one, {}) for one in (Scenario(locality="nosa"), Scenario(churn=0.1)))
    assert (synthetic.base.locality, churning.base.locality) == ("nosa", "hisparse")
    for grid in (synthetic, churning):
        assert "trace" not in {axis.name for axis in grid.axes}
        assert len(grid.axis("pool").labels) == 3


def test_an_axis_that_the_study_turns_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="the study lookahead varies batch"):
        lookahead_grid(Scenario(), {"runtime": ("resident",)})


def test_gains_are_those_of_the_formula(study: Study) -> None:
    _, matrix, _, _, points, *_ = lookahead_tables(study, serial, None)
    row = next(r for r in matrix.records() if r["pool"] == "4x lru" and r["link_gb_s"] == 96.0)
    assert row["batch 1"] == pytest.approx((10 + 60 / 96 / 4) / 10, rel=1e-3)
    assert row["batch 16"] == pytest.approx((10 + 60 * 16 / 96 / 4) / 10, rel=1e-3)
    assert row["batch 32"] is None
    short = [r for r in points.records() if r["batch"] == 32]
    assert all(r["tokens_per_s"] is None and "'host' needs 200" in r["reason"] for r in short)
    first = points.records()[0]
    assert first[f"times {SAME}"] == pytest.approx((10 + 5) / 10)


def test_slots_alone_are_held_against_lookahead_on_the_last_selection(study: Study) -> None:
    shares, instead = lookahead_tables(study, serial, None)[2:4]
    by_pool = {(row["pool"], row["link_gb_s"]): row for row in instead.records()}
    assert {pool for pool, _ in by_pool} == {"2x lru", "4x lru"}
    assert [(row["pool"], row["slots are faster"]) for row in shares.records()] == [
        ("2x lru", "1 of 4"), ("4x lru", "1 of 4")
    ]  # fmt: skip
    assert by_pool["4x lru", 12.0]["batch 1"] == pytest.approx(10 / (10 + 60 / 12 / 4), rel=1e-3)
    assert by_pool["4x lru", 12.0]["batch 16"] == pytest.approx(80 / (10 + 80 / 4), rel=1e-3)


def test_each_multiple_of_slots_says_gain_exposure_and_memory(study: Study) -> None:
    by_pool = lookahead_tables(study, serial, None)[0]
    assert [row[0] for row in by_pool.rows] == ["1x last-selection", "2x lru", "4x lru"]
    assert by_pool.records()[0]["pays (5% or more)"] == "4 of 4"
    # 60 / 96 / 4 ms of a 10 ms step are no 5 %.
    assert by_pool.records()[2]["pays (5% or more)"] == "3 of 4"
    assert by_pool.records()[2]["share"] == 0.75
    assert AHEAD in by_pool.title
    assert any("synthetic locality hisparse" in note and "not calibrated" in note for note in by_pool.notes)


def test_crossovers_are_where_the_formula_has_them(study: Study) -> None:
    *_, links, batches = lookahead_tables(study, serial, None)
    says = {(row[0], row[1]): row[2] for row in links.rows}
    assert links.columns[:2] == ("pool", "batch")
    # The gain ends where the copy takes less than half a millisecond of ten: at 60 * batch / slots / 0.5 GB/s.
    assert says["4x lru", 1].startswith("pays, from 30.")
    assert says["1x last-selection", 1] == "none in range: pays from 0.5 to 60.1"
    assert "from 0.5 to 60.1" in links.title  # PCIe 5 x16 carries no more
    by_batch = {(row[0], row[1]): row[2] for row in batches.rows}
    assert by_batch["4x lru", 96.0].startswith("does not pay, from 4 pays")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_figure_has_a_panel_a_link_and_a_line_a_pool(study: Study) -> None:
    figure = lookahead_figures(study)["lookahead"]
    assert [axes.get_title() for axes in figure.axes] == [
        "host link, GB/s each way: 12.0", "host link, GB/s each way: 96.0"
    ]  # fmt: skip
    assert {"1x last-selection", "2x lru", "4x lru"} <= {line.get_label() for line in figure.axes[0].lines}
    assert "locality hisparse" in figure.get_suptitle()
    assert "predicted, not measured" in figure.get_suptitle()


def test_the_real_simulator_moves_fewer_blocks_the_more_slots_there_are() -> None:
    grid = lookahead_grid(Scenario(context=16384, locality="hisparse"), {"batch": (1,), "link_gb_s": (25.0,)})
    moved = [row.misses or 0 for row in run_grid(grid).rows if row.labels["method"] == AHEAD]
    assert moved[0] > 1.8 * moved[1] > 1.8 * 1.5 * moved[2]


def test_studies_are_found_by_name_and_ask_a_question() -> None:
    assert study_named("lookahead").question.endswith("?")
    assert set(STUDIES) == {"lookahead"}
    with pytest.raises(UnknownNameError, match="did you mean 'lookahead'"):
        study_named("look-ahead")
