"""Whole decode steps as measured on an H200, against what is predicted: no number of the profile is fitted to them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "2026-11-30-decode-h200.json"
#: What a prediction knows: steps in one graph, copies by `uva` as they are shipped, the host's bytes as the device's.
KNOWN = {"engine": "uva", "copies": "ours", "launches": "graph", "host_dtype": "same", "copy_launch": "layer"}
CELLS: dict[str, dict[str, Any]] = {
    row["key"]: row
    for row in json.loads(RESULTS.read_text())["rows"]
    if all(row[name] == value for name, value in KNOWN.items())
}


def predicted_s(row: dict[str, Any]) -> float:
    given: dict[str, Any] = {name: row[name] for name in ("selector", "runtime", "batch", "context")}
    if row["runtime"] != "resident":
        given |= {"locality": "hisparse", "slot_factor": row["slots"], **{n: row[n] for n in ("churn", "policy")}}
    return Scenario(**given).predict().step_s


def test_there_are_as_many_as_the_page_says() -> None:
    assert f"All {len(CELLS)} cells that a prediction knows" in (ROOT / "docs" / "decode.md").read_text()


@pytest.mark.parametrize("key", CELLS)
def test_a_measured_step_is_predicted_within_a_twentieth(key: str) -> None:
    off = predicted_s(CELLS[key]) / CELLS[key]["step_s"] - 1
    assert abs(off) <= 0.05, f"off by {off:+.3f}"


def test_the_table_of_the_page_says_what_is_measured_and_predicted() -> None:
    page = (ROOT / "docs" / "decode.md").read_text()
    lines = re.findall(r"^\| (.*?) \| ([\d.]+) \| [^|]* \| ([\d.]+), ([-+][\d.]+) % \|$", page, re.MULTILINE)
    assert len(lines) > 15
    for key, measured, predicted, off in lines:
        took, says = CELLS[key]["step_s"], predicted_s(CELLS[key])
        assert (f"{1e3 * took:.2f}", f"{1e3 * says:.2f}") == (measured, predicted), key
        assert float(off) == pytest.approx(100 * (says / took - 1), abs=0.051), key
