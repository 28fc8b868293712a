"""The pages about the table say what the results file says, and that says what is predicted today."""

from __future__ import annotations

import json

import pytest

from benchmarks.published_page import PAGE, PLACES, README, filled, readme_filled, stored
from sparda_core.errors import ConfigError
from sparda_core.published.document import csv_text
from sparda_core.published.report import Report
from sparda_core.simulator.profile_file import load_profile

FOUND = json.loads(stored().read_text(encoding="utf-8"))
TEXT = PAGE.read_text(encoding="utf-8")
AGAIN = "run python -m benchmarks.published_page"


def test_the_page_is_that_of_the_results() -> None:
    assert TEXT.count("<!-- end -->") == len(PLACES)
    assert filled(TEXT, FOUND, stored().name) == TEXT, AGAIN
    assert sum(line.startswith(("| 4 |", "| 8 |", "| 16 |", "| 32 |", "| 64 |")) for line in TEXT.splitlines()) == 15
    with pytest.raises(ConfigError, match="table='cels' is unknown"):
        filled(TEXT.replace("table: cells", "table: cels"), FOUND, stored().name)


def test_the_readme_says_what_the_results_say() -> None:
    text = README.read_text(encoding="utf-8")
    assert readme_filled(text, FOUND) == text, AGAIN
    with pytest.raises(ConfigError, match="0 sentences"):
        readme_filled(text.replace("is met with", "was met with"), FOUND)


def test_another_result_is_another_page() -> None:
    other = json.loads(json.dumps(FOUND))
    other["reports"]["nothing fitted"]["summary"]["median_abs_error"] += 0.01
    assert filled(TEXT, other, stored().name) != TEXT
    assert readme_filled(README.read_text(encoding="utf-8"), other) != README.read_text(encoding="utf-8")


def test_the_results_are_what_is_predicted_today(plain: Report, fitted: Report) -> None:
    """To half a point, which is what the page shows; and from the profile as it is shipped."""
    for kept, now in zip(FOUND["reports"].values(), (plain, fitted), strict=True):
        was = {(row["batch"], row["mode"]): row["error"] for row in kept["cells"]}
        for (batch, mode), error in now.errors.items():
            assert abs(was[batch, mode] - error) < 0.005, f"batch {batch}, {mode}: {AGAIN}"
    assert FOUND["provenance"]["profile_digest"] == load_profile("h100-sxm").digest, AGAIN


def test_csv_has_one_line_a_cell_and_report(plain: Report) -> None:
    assert len(csv_text({"a": plain, "b": plain}).splitlines()) == 1 + 2 * 24
