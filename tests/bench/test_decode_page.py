"""docs/decode.md says what its data say."""

from __future__ import annotations

import json
from pathlib import Path

from sparda_core.bench.decode.page import filled

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "benchmarks" / "results" / "2026-11-30-decode-h200.json").read_text())
METHODS = ("query sync", "forecast sync", "forecast prefetch")
PAGE = (ROOT / "docs" / "decode.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert PAGE.count("<!-- table: ") == 7
    assert filled(PAGE, {"": DATA}) == PAGE
    assert "| forecast prefetch b16 128K churn 10% last-selection x1 | 7.51 |" in PAGE


def test_what_the_text_says_of_steps_is_in_the_data() -> None:
    steps = {row["key"]: row["step_s"] * 1e3 for row in DATA["rows"]}
    pool = "128K churn 10% last-selection x1"
    for said, key in (
        ("a prefetching step takes 7.5 ms", f"forecast prefetch b16 {pool}"),
        ("synchronous offload takes 13.5", f"query sync b16 {pool}"),
        ("take 7.4 ms", "forecast resident b28 128K"),
        ("against 7.8 with four times the slots", "forecast prefetch b28 128K churn 10% lru x4"),
        ("and 12.7 with the paper's pool", f"forecast prefetch b28 {pool}"),
        ("7.40 against 7.51 ms", f"forecast prefetch b16 {pool} one copy a step"),
    ):
        assert said in PAGE
        assert any(f"{steps[key]:.{digits}f}" in said for digits in (1, 2)), (said, steps[key])
    ratio = steps[f"forecast prefetch b16 {pool}"] / steps["forecast resident b16 128K"]
    assert f"{ratio:.2f} times what the same step takes with everything on the device" in PAGE
    assert f"All {len(DATA['rows'])} cells of that day were measured" in PAGE


def test_the_readme_tells_the_steps_of_the_data() -> None:
    readme = (ROOT / "README.md").read_text()
    steps = {row["key"]: row["step_s"] * 1e3 for row in DATA["rows"]}
    pool = "128K churn 10% last-selection x1"
    for batch in (1, 4, 8, 16, 28):
        keys = (f"forecast resident b{batch} 128K", *(f"{m} b{batch} {pool}" for m in METHODS))
        line = " | ".join(f"{steps[key]:.2f}" for key in keys)
        gain = steps[f"query sync b{batch} {pool}"] / steps[f"forecast prefetch b{batch} {pool}"]
        assert f"| {batch} | {line} | " in readme
        assert f"{gain:.2f}x" in readme
    assert "28 offloaded rows take 7.82 ms" in readme
    assert f"{steps['forecast prefetch b28 128K churn 10% lru x4']:.2f}" == "7.82"
