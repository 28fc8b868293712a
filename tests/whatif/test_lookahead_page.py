"""docs/lookahead.md says what its data say."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lookahead import steps
from sparda_core.bench.lookahead_data import MEDIAN, shares, table_of
from sparda_core.bench.lookahead_measured import measured_gains
from sparda_core.bench.lookahead_page import BURSTS, PLACES, filled
from sparda_core.errors import ConfigError
from sparda_core.whatif.lookahead import (
    AHEAD,
    BATCHES,
    CONTEXTS,
    HEADLINE,
    LOCALITY,
    METHODS,
    PAPER,
    PAYS,
    POOLS,
    SAME,
    TRACES,
    machines,
)
from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lookahead.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
DATA: dict[str, Any] = json.loads((RESULTS / "2026-11-30-lookahead.json").read_text())
STEPS = steps()
BY = ("trace", "machine", "pool")
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


@pytest.mark.parametrize("machine", sorted(machines()))
def test_points_of_every_machine_are_what_is_predicted_today(machine: str) -> None:
    """To four figures of a point, or half a percent where a profile was refitted since."""
    for context, batch, pool in ((2**17, 16, PAPER), (2**17, 16, "2x lru"), (2**15, 64, "4x lru")):
        asked = {"trace": LOCALITY, "machine": machine, "context": str(context), "batch": str(batch), "pool": pool}
        (point,) = [point for point in POINTS if asked.items() <= point.items()]
        scenario = Scenario(**TRACES[LOCALITY], **machines()[machine], **POOLS[pool], context=context, batch=batch)
        early, same = (scenario.turned(**METHODS[name]).predict() for name in (AHEAD, SAME))
        told = f"{asked}: run python -m benchmarks.lookahead --out lookahead"
        assert float(point["tokens_per_s"]) == pytest.approx(early.tokens_per_s, rel=5e-3), told
        gain = early.tokens_per_s / same.tokens_per_s
        assert float(point[f"times {SAME}"]) == pytest.approx(gain, rel=5e-3), told


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


def test_what_the_page_and_the_readme_say_in_plain_words_is_in_the_data() -> None:
    """Figures are filled; who changes a profile or a trace is told here which word no longer holds."""
    told = {(row["trace"], row["pool"]): row for row in shares(DATA)}
    for trace in TRACES:
        assert told[trace, PAPER]["share"] > 0.9, "almost everywhere"
        assert told[trace, PAPER][MEDIAN] == pytest.approx(1.25, abs=0.05), "about a quarter at the median"
        if trace != LOCALITY:
            assert told[trace, "4x lru"]["share"] < 0.5, "in fewer than half"
            assert told[trace, "4x lru"]["share"] < told[trace, "2x lru"]["share"] < told[LOCALITY, "2x lru"]["share"]
    assert told[LOCALITY, "4x lru"]["share"] > 0.75, "still in most"
    assert not any(trace == LOCALITY and "score" in pool for trace, pool in told)
    readme = (ROOT / "README.md").read_text()
    assert f"in most of {told[LOCALITY, PAPER]['cells']} cells (six machines, 32K to 1M tokens, 1 to 64 rows)" in readme
    assert [line.startswith("**Where the device keeps") for line in PAGE.splitlines()].index(True) < 4


def test_lookahead_never_costs_time_slots_little_and_alone_they_do_more_for_many_rows() -> None:
    speed = {
        (*(row[name] for name in BY), row["context"], row["batch"]): float(row["tokens_per_s"])
        for row in POINTS if row["tokens_per_s"]
    }  # fmt: skip
    for (trace, machine, _, *rest), rate in speed.items():
        assert rate > (1 - 0.011) * speed[trace, machine, PAPER, *rest], "up to 1.1 %"
    assert all(float(row[f"times {SAME}"]) >= 1 for row in POINTS if row[f"times {SAME}"])
    for row in table_of(DATA, "Slots instead of lookahead"):
        if (row["machine"], row["context"]) == (HEADLINE, 2**17):
            assert row["batch 1"] < 1
            assert row["batch 4"] < 1
            assert row["batch 16"] > 1.2
            assert row["batch 64"] > 1.2


def test_twice_the_slots_alone_do_nearly_as_much_as_lookahead_alone_at_the_median() -> None:
    for row in table_of(DATA, "Slots in place of lookahead"):
        if row["pool"] == "2x lru":
            assert row[MEDIAN] == pytest.approx(1, abs=0.05), "within 5 %"


def test_bursts_change_gains_by_little() -> None:
    for row in table_of(DATA, BURSTS):
        assert row["step by step"] == pytest.approx(row["mean step"], abs=0.03)


def test_measured_gains_stand_beside_predicted_ones_within_a_tenth() -> None:
    found = [one for run in STEPS for one in measured_gains(run)]
    assert len(found) >= 11
    for one in found:
        assert one.predicted == pytest.approx(one.gain, rel=0.1), one.after["key"]


def test_a_table_that_the_study_lacks_is_missed() -> None:
    with pytest.raises(ConfigError, match="0 tables called 'Nothing'"):
        table_of(DATA, "Nothing")
