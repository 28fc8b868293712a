"""docs/decode.md says what its data say."""

from __future__ import annotations

import json
from pathlib import Path

from sparda_core.bench.decode.page import filled

ROOT = Path(__file__).parents[2]
DATA, NOSA, ENTRIES = (
    json.loads((ROOT / "benchmarks" / "results" / f"2026-11-30-decode{name}-h200.json").read_text())
    for name in ("", "-nosa", "-entries")
)
METHODS = ("query sync", "forecast sync", "forecast prefetch")
PAGE = (ROOT / "docs" / "decode.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert PAGE.count("<!-- table: ") == 9
    assert filled(PAGE, {"": DATA, "nosa": NOSA, "entries": ENTRIES}) == PAGE
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


def test_what_the_text_says_of_nosa_and_of_finer_entries_is_in_the_data() -> None:
    steps = {row["key"]: row["step_s"] * 1e3 for row in DATA["rows"] + NOSA["rows"]}
    for batch, said in ((16, "At 16 rows that is {:.2f} times"), (8, "is left to hide, {:.2f} times")):
        where = f"b{batch} 128K nosa-8b churn 6% last-selection x1"
        gain = steps[f"nosa sync {where}"] / steps[f"nosa-forecast prefetch {where}"]
        assert said.format(gain) in PAGE
    plain = [steps[f"forecast resident b{batch} 128K"] for batch in (16, 1)]
    assert "32/16 takes {:.2f} and {:.2f} ms".format(*plain) in PAGE
    grids = (ROOT / "docs" / "leads-and-grids.md").read_text()
    took = {row["key"]: row["step_s"] * 1e3 for row in ENTRIES["rows"]}
    for entries in ("8/8", "4/4"):
        pair = [took[f"forecast resident b{batch} 128K entries {entries}"] for batch in (1, 16)]
        assert "{:.2f} and {:.2f}".format(*pair) in grids


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
