"""docs/lookahead.md says what its data say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCHES = (1, 4, 8, 16, 24)


@pytest.mark.parametrize("locality", ["hisparse", "smollm2-forecast"])
@pytest.mark.parametrize("title", ["The same by batch", "Slots instead of lookahead"])
def test_the_tables_of_the_page_are_those_of_the_data(locality: str, title: str) -> None:
    page = (ROOT / "docs" / "lookahead.md").read_text()
    data = json.loads((ROOT / "benchmarks" / "results" / f"2026-11-30-lookahead-{locality}.json").read_text())
    assert data["base"]["locality"] == locality
    assert data["finished"] is True
    (table,) = [table for table in data["tables"] if table["title"].startswith(title)]
    rows = [row for row in table["rows"] if row["pcie"] == 5]
    assert len(rows) >= 3
    for row in rows:
        cells = " | ".join(f"{row[f'batch {batch}']:.2f}" for batch in BATCHES)
        assert f"| {row['pool']} | {cells} |" in page
