"""docs/decode.md says what its data say."""

from __future__ import annotations

import json
from pathlib import Path

from sparda_core.bench.decode.page import filled

ROOT = Path(__file__).parents[2]
DATA, NOSA, ENTRIES, LEADS = (
    json.loads((ROOT / "benchmarks" / "results" / f"2026-11-30-decode{name}-h200.json").read_text())
    for name in ("", "-nosa", "-entries", "-leads")
)
METHODS = ("query sync", "forecast sync", "forecast prefetch")
PAGE, GRIDS = ((ROOT / "docs" / name).read_text() for name in ("decode.md", "leads-and-grids.md"))


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert PAGE.count("<!-- table: ") == 10
    assert filled(PAGE, {"": DATA, "nosa": NOSA, "entries": ENTRIES, "leads": LEADS}) == PAGE
    assert "| forecast prefetch b16 128K churn 10% last-selection x1 | 7.49 |" in PAGE


def test_what_the_text_says_of_steps_is_in_the_data() -> None:
    steps = {row["key"]: row["step_s"] * 1e3 for row in DATA["rows"] + LEADS["rows"]}
    pool = "128K churn 10% last-selection x1"
    for said, key in (
        ("a prefetching step takes 7.5 ms", f"forecast prefetch b16 {pool}"),
        ("synchronous offload takes 13.6", f"query sync b16 {pool}"),
        ("take 7.4 ms", "forecast resident b28 128K"),
        ("against 7.8 with four times the slots", "forecast prefetch b28 128K churn 10% lru x4"),
        ("and 11.7 with the paper's pool", f"forecast prefetch b28 {pool}"),
        ("7.45 against 7.49 ms", f"forecast prefetch b16 {pool} one copy a step"),
        ("11.55 against 11.66 at 28", f"forecast prefetch b28 {pool} one copy a step"),
        ("22.38 for 24.30", "forecast prefetch b56 64K churn 10% last-selection x1"),
        ("43.58 for 47.33", "forecast prefetch b112 32K churn 10% last-selection x1"),
        ("`copy-engine` takes 6.7 ms", f"forecast prefetch b8 {pool} copy-engine"),
        ("`cpu-gather` 10.9", f"infinigen prefetch b8 {pool} cpu-gather"),
        ("At 28 rows they take 10.7 ms", f"forecast prefetch b28 {pool} fp8"),
        ("(7.89 and 7.90 ms)", "forecast prefetch b28 128K churn 10% lru x2 fp8"),
        ("leads of 2 and 4, with as many layers on the device, take 7.38", f"forecast prefetch b16 {pool} lead 2"),
        ("and 7.29 ms where a lead of 1 takes 7.49", f"forecast prefetch b16 {pool} lead 4"),
        ("8/8 takes 7.72", f"forecast prefetch b16 {pool} entries 8/8"),
        ("4/4 8.32 ms", f"forecast prefetch b16 {pool} entries 4/4"),
    ):
        assert said in PAGE + GRIDS
        assert any(f"{steps[key]:.{digits}f}" in said for digits in (1, 2)), (said, steps[key])
    ratio = steps[f"forecast prefetch b16 {pool}"] / steps["forecast resident b16 128K"]
    assert f"{ratio:.2f} times what the same step takes with everything on the device" in PAGE
    cells = sum(len(document["rows"]) for document in (DATA, NOSA, ENTRIES, LEADS))
    assert f"All {cells} cells were measured" in PAGE


def test_what_the_text_says_of_tokens_and_of_the_link_is_in_the_data() -> None:
    rows = {row["key"]: row for row in DATA["rows"]}
    offloaded, fits, base = (
        rows[key]["tokens_per_s"]
        for key in (
            "forecast prefetch b28 128K churn 10% lru x4", "forecast resident b13 128K", "query resident b4 128K eager",
        )
    )  # fmt: skip
    assert f"make {offloaded:,.0f} tokens a second against {fits:,.0f}, {offloaded / fits:.2f} times as many" in PAGE
    assert f"and {offloaded / base:.0f} times the {base:.0f} of" in PAGE
    pool = "churn 10% last-selection x1"
    beside = (rows[f"forecast prefetch {load} {pool}"] for load in ("b28 128K", "b56 64K", "b112 32K"))
    rates = [round(row["moved_bytes"] / row["copies_beside_s"] / 1e9) for row in beside]
    assert "{}, {} and {} GB/s where they drew 40, 37 and 38".format(*rates) in PAGE
    share = {batch: rows[f"forecast prefetch b{batch} 128K {pool}"]["link_share"] for batch in (16, 28)}
    assert f"stays at {share[16]:.2f} of the link's floor (0.85 asked for; 28 rows reach {share[28]:.2f})" in PAGE


def test_what_the_text_says_of_nosa_and_of_finer_entries_is_in_the_data() -> None:
    steps = {row["key"]: row["step_s"] * 1e3 for row in DATA["rows"] + NOSA["rows"]}
    for batch, said in ((16, "At 16 rows that is {:.2f} times"), (8, "is left to hide, {:.2f} times")):
        where = f"b{batch} 128K nosa-8b churn 6% last-selection x1"
        gain = steps[f"nosa sync {where}"] / steps[f"nosa-forecast prefetch {where}"]
        assert said.format(gain) in PAGE
    plain = [steps[f"forecast resident b{batch} 128K"] for batch in (16, 1)]
    assert "32/16 takes {:.2f} and {:.2f} ms".format(*plain) in PAGE
    took = {row["key"]: row["step_s"] * 1e3 for row in ENTRIES["rows"]}
    for entries in ("8/8", "4/4"):
        pair = [took[f"forecast resident b{batch} 128K entries {entries}"] for batch in (1, 16)]
        assert "{:.2f} and {:.2f}".format(*pair) in GRIDS


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
    assert "28 offloaded rows take 7.81 ms" in readme
    assert f"{steps['forecast prefetch b28 128K churn 10% lru x4']:.2f}" == "7.81"
