"""The pages on validation and on the error budget say what their data say, and the data are what is predicted."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation_page import NAMES, PAGES, main, verdicts
from sparda_core.bench.validate.earlier import earlier_records
from sparda_core.bench.validate.folder import read_run
from sparda_core.bench.verdict.judged import HOST
from sparda_core.bench.verdict.limits import STATISTICS, median_error
from sparda_core.bench.verdict.make import judge_record
from sparda_core.bench.verdict.page import NOTHING, PARTS, filled
from sparda_core.errors import ConfigError
from sparda_core.simulator.launches import needs_host_list
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.step_models import FIXED, FULL, STEP_MODELS
from sparda_core.whatif.scenario import Scenario
from tests.bench.verdict.cells import judged, verdict

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
VALIDATION, BUDGET = (page.read_text() for page in PAGES)
FOUND = verdicts()
ROWS = json.loads((ROOT / "benchmarks" / "results" / "2026-11-30-decode-h200.json").read_text())["rows"]


def names_of(page: str) -> list[str]:
    return re.findall(r"<!-- table: ([a-z-]+) -->", page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_data(page: Path) -> None:
    text = page.read_text()
    assert filled(text, FOUND) == text
    assert len(names_of(text)) > 1


def test_every_kind_of_verdict_is_on_the_page_and_the_known_cells_are_there() -> None:
    told = {name.partition("-")[0] for name in names_of(VALIDATION)}
    assert told == set(NAMES)
    assert FOUND["earlier"] is not None
    assert VALIDATION.count(NOTHING) == sum(FOUND[name.partition("-")[0]] is None for name in names_of(VALIDATION))
    for name in STEP_MODELS:
        assert f"| {name} |" in VALIDATION


def test_the_predictions_of_the_known_cells_are_what_is_predicted_today() -> None:
    earlier = FOUND["earlier"]
    assert earlier is not None
    assert earlier.profile["digest"] == load_profile("h200").digest, "run python -m benchmarks.validation_page again"
    records = earlier_records(ROWS)
    assert [cell.key for cell in earlier.cells] == [record.cell.key for record in records]
    for at in range(3, len(records), 23):
        again = judge_record(records[at], "h200")
        assert again.models == pytest.approx(earlier.cells[at].models), records[at].cell.key
        assert again.measured_s == earlier.cells[at].measured_s


def test_what_the_text_says_of_models_is_in_the_data() -> None:
    earlier = FOUND["earlier"]
    assert earlier is not None
    graph = [cell for cell in earlier.measured if cell.stratum != HOST]
    waits = [cell for cell in graph if not cell.overlaps]
    early = [cell for cell in graph if cell.overlaps]
    assert len(waits) > 30
    assert len(early) > 20
    for name in ("no contention", "max(copy, compute)", "max of sums", "share fixed at start"):
        for cell in waits:
            assert cell.models[name] == pytest.approx(cell.models[FULL], rel=2e-3), (name, cell.key)
    for cell in early:
        if cell.of.lead == 1:
            assert cell.models["max of sums"] == pytest.approx(cell.models["no contention"], rel=2e-3), cell.key
        for name in ("no contention", "max(copy, compute)", "max of sums"):
            assert cell.models[name] <= cell.models[FULL] * (1 + 1e-6), (name, cell.key)
    sync = [cell for cell in waits if cell.of.runtime == "offload-sync"]
    assert max(cell.error("overlapped roofline") or 0.0 for cell in sync) > 1
    bound = [cell for cell in early if cell.stratum == "link"]
    assert median_error(bound, "share fixed at start") > median_error(bound) + 0.015


def test_what_the_page_says_of_the_drawn_cells_is_in_the_data() -> None:
    main = FOUND["main"]
    assert main is not None
    timed = [cell for cell in main.cells if cell.measured_s is not None]
    assert f"**{len(timed)} of {len(main.cells)} were measured**" in VALIDATION
    assert (len(main.cells), len(timed)) == (62, 61)
    graph = [cell for cell in main.measured if cell.stratum != HOST]
    assert all(abs((cell.error() or 0.0) - (cell.replay_error or 1.0)) < 0.0025 for cell in main.measured)
    refused = [cell for cell in timed if cell.error() is None]
    assert [cell.of.ctas for cell in refused] == [12, 16, 16]
    apart = [cell.error() or 0.0 for cell in graph if not cell.overlaps]
    assert -0.013 < min(apart) < max(apart) < 0.013
    few = {cell.key: cell.error() or 0.0 for cell in graph if cell.overlaps and cell.stratum == "balanced"}
    slow = [error for key, error in few.items() if "CTAs" not in key and re.search(r"b(16|20|24) ", key)]
    assert len(slow) > 3
    assert -0.065 < min(slow) < max(slow) < -0.015
    assert "two thread blocks a copy and products of 16 to 24 rows beside it, are told 2 to 6 % too slow" in VALIDATION
    assert "(balanced cells that overlap: 0.8 % off at the median, against 2.8 %)" in VALIDATION
    overlapping = [cell for cell in graph if cell.overlaps and cell.stratum == "balanced"]
    assert median_error(overlapping, FIXED) == pytest.approx(0.008, abs=0.0005)
    assert median_error(overlapping) == pytest.approx(0.028, abs=0.0005)
    for stratum in ("link", HOST):
        some = [cell for cell in main.measured if cell.stratum == stratum]
        assert median_error(some) < median_error(some, FIXED)


def test_what_the_page_says_was_foretold_of_the_second_list_was() -> None:
    told = json.loads((RESULTS / "2026-11-30-foretold-second-h200.json").read_text())
    second = read_run(RESULTS / "2026-11-30-validated-second-h200")
    assert [row["id"] for row in told["rows"]] == [record.cell.id for record in second.records]
    graph: list[float] = []
    tiers: dict[str, list[float]] = {}
    for row, record in zip(told["rows"], second.records, strict=True):
        if record.measured is not None and not needs_host_list(record.cell.engine):
            error = abs(record.measured.step_s / row["step_s"] - 1)
            graph.append(error)
            tiers.setdefault(record.tier, []).append(error)
    says = (
        f"the {len(graph)} measured cells of one graph came out {100 * statistics.median(graph):.1f} % off at the "
        "median, "
        f"{100 * STATISTICS['p90'](graph):.1f} % at the ninth decile and {100 * max(graph):.1f} % at most**"
    )
    assert says in VALIDATION
    each = [f"{name} {100 * statistics.median(tiers[tier]):.1f} %" for tier, name in (
        ("combination", "combinations"), ("axis", "axes"), ("interpolated", "interpolated cells"))]  # fmt: skip
    assert f"; {', '.join(each)}." in VALIDATION


def test_what_the_budget_says_of_copies_beside_compute_is_in_the_data() -> None:
    timed = [row for row in ROWS if row.get("copies_beside_s")]
    beside = {row["key"]: row["moved_bytes"] / row["copies_beside_s"] / 1e9 for row in timed}
    pool = "churn 10% last-selection x1"
    for load, low, high in (("b64 32K", 45, 48), ("b56 64K", 44, 47), ("b112 32K", 47, 49)):
        for method in ("forecast prefetch", "forecast sync"):
            assert low <= beside[f"{method} {load} {pool}"] <= high


def test_what_the_budget_says_of_float8_is_what_is_predicted() -> None:
    steps = {row["key"]: row["step_s"] for row in ROWS}
    pool: dict[str, Any] = {
        "selector": "forecast", "runtime": "offload-prefetch", "batch": 28, "context": 1 << 17, "churn": 0.10,
        "locality": "hisparse", "host_dtype": "fp8",
    }  # fmt: skip
    for policy, slots, measured, predicted in (("last-selection", 1.0, "10.7 ms", 7.9), ("lru", 2.0, "7.89", 7.7)):
        key = f"forecast prefetch b28 128K churn 10% {policy} x{slots:g} fp8"
        digits = 1 if measured.endswith("ms") else 2
        assert measured.removesuffix(" ms") == f"{1e3 * steps[key]:.{digits}f}"
        says = 1e3 * Scenario(**pool, policy=policy, slot_factor=slots).predict().step_s
        assert says == pytest.approx(predicted, abs=0.15)
    assert "a step of 28 rows takes 10.7 ms where 7.9 are predicted; 7.89 and 7.7 with twice the slots" in BUDGET


def test_what_is_not_measured_says_so_and_an_unknown_table_is_named() -> None:
    page = "<!-- table: main-bars -->\nold\n<!-- end -->\n"
    assert NOTHING in filled(page, {"main": None})
    assert "replay: max error" in filled(page, {"main": verdict(judged(replay=0.1))})
    with pytest.raises(ConfigError, match="table='main-jokes' is unknown; known: summary"):
        filled(page.replace("bars", "jokes"), {"main": None})


@pytest.mark.parametrize("name", list(PARTS))
def test_every_table_can_be_made_of_few_cells_and_of_none(name: str) -> None:
    few = verdict(judged(error=0.1, replay=0.01), judged(error=0.2, tier="axis", stratum="link", overlaps=True))
    for one in (few, verdict(), verdict(judged(measured=0.01, refused="out of memory", problem="no law"))):
        assert PARTS[name](one)


def test_the_program_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="must be NAME=PATH, NAME one of main, second, cpu, earlier"):
        main(["other=somewhere"])
