"""docs/lookahead.md says what its data say."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from sparda_core.bench.lookahead_page import BURSTS, PLACES, filled, measured_gains, shares, table_of
from sparda_core.errors import ConfigError
from sparda_core.whatif.lookahead import BATCHES, CONTEXTS, HEADLINE, LOCALITY, PAPER, PAYS, SAME, TRACES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lookahead.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
DATA: dict[str, Any] = json.loads((RESULTS / "2026-11-30-lookahead.json").read_text())
STEPS: dict[str, Any] = json.loads((RESULTS / "2026-11-30-decode-h200.json").read_text())
MEDIAN, BY = "times as fast, median", ("trace", "machine", "pool")
with (RESULTS / "2026-11-30-lookahead.csv").open() as _file:
    POINTS = list(csv.DictReader(_file))


def test_every_table_of_the_page_is_that_of_the_data() -> None:
    assert PAGE.count("<!-- end -->") == len(PLACES)
    assert filled(PAGE, DATA, STEPS) == PAGE
    assert f"| {HEADLINE} |" in PAGE
    with pytest.raises(ConfigError, match="place='shres' is unknown"):
        filled(PAGE.replace("table: shares", "table: shres"), DATA, STEPS)


def test_the_study_is_whole_and_over_what_the_page_says() -> None:
    assert DATA["finished"] is True
    assert {row["trace"] for row in POINTS} == set(TRACES)
    assert {int(row["context"]) for row in POINTS} == set(CONTEXTS)
    assert {int(row["batch"]) for row in POINTS} == set(BATCHES)
    machines = {row["machine"] for row in POINTS}
    # Three pools of a locality, five of each recording.
    assert len(POINTS) == (3 + 5 + 5) * len(machines) * len(CONTEXTS) * len(BATCHES)
    assert len(machines) == 6


def test_shares_are_counted_from_the_points() -> None:
    for row in shares(DATA):
        gains = [
            float(point[f"times {SAME}"])
            for point in POINTS
            if (point["trace"], point["pool"]) == (row["trace"], row["pool"]) and point[f"times {SAME}"]
        ]
        assert len(gains) == row["cells"]
        # The points keep four figures.
        pays = [sum(gain >= PAYS + by for gain in gains) for by in (5e-4, -5e-4)]
        assert pays[0] <= round(row["share"] * len(gains)) <= pays[1]
        assert statistics.median(gains) == pytest.approx(row["times as fast, median"], rel=1e-3)


def test_what_the_page_says_in_plain_words_is_in_the_data() -> None:
    """Who changes a profile or a trace and refills the page is told here which sentence no longer holds."""
    told = {(row["trace"], row["pool"]): row for row in shares(DATA)}
    recorded = [trace for trace in TRACES if trace != LOCALITY]
    for trace in TRACES:
        assert told[trace, PAPER]["share"] >= 0.93, "almost everywhere"
        assert 1.2 <= told[trace, PAPER][MEDIAN] <= 1.3, "about a quarter at the median"
    for trace in recorded:
        assert 1.075 <= told[trace, "2x lru"][MEDIAN] <= 1.095, "8 or 9 % at the median"
        assert 1.025 <= told[trace, "4x lru"][MEDIAN] <= 1.055, "3 to 5 %"
        for machine in ("H200, PCIe 6", "GH200"):
            (fast,) = [row for row in shares(DATA, "machine") if [row[n] for n in BY] == [trace, machine, "4x lru"]]
            assert fast[MEDIAN] < 1.05, "on a fast link next to nothing"
    assert told[LOCALITY, "4x lru"]["share"] > 0.8, "still worth a trained Forecast"
    assert not any(trace == LOCALITY and "score" in pool for trace, pool in told)
    readme = (ROOT / "README.md").read_text()
    shown = [f"{100 * told[trace, '4x lru']['share']:.0f}" for trace in TRACES]
    assert f"in {shown[0]} % under a published reuse curve, in {shown[1]} to {shown[2]} % under recordings" in readme


def test_both_are_never_slower_than_either_and_slots_alone_do_more_for_many_rows() -> None:
    speed = {
        (*(row[name] for name in BY), row["context"], row["batch"]): float(row["tokens_per_s"])
        for row in POINTS if row["tokens_per_s"]
    }  # fmt: skip
    for (trace, machine, _, *rest), rate in speed.items():
        assert rate > 0.995 * speed[trace, machine, PAPER, *rest], "slots cost no time"
    assert all(float(row[f"times {SAME}"]) >= 1 for row in POINTS if row[f"times {SAME}"])
    for row in table_of(DATA, "Slots instead of lookahead"):
        if (row["machine"], row["context"]) == (HEADLINE, 2**17):
            assert row["batch 1"] < 1
            assert row["batch 4"] < 1
            assert row["batch 16"] > 1.2
            assert row["batch 64"] > 1.2


def test_bursts_change_gains_by_little() -> None:
    for row in table_of(DATA, BURSTS):
        assert row["step by step"] == pytest.approx(row["mean step"], abs=0.03)


def test_measured_gains_stand_beside_predicted_ones_within_a_tenth() -> None:
    found = measured_gains(STEPS["rows"])
    assert len(found) >= 11
    for one in found:
        assert one.predicted == pytest.approx(one.gain, rel=0.1), one.after["key"]


def test_a_table_that_the_study_lacks_is_missed() -> None:
    with pytest.raises(ConfigError, match="0 tables called 'Nothing'"):
        table_of(DATA, "Nothing")
