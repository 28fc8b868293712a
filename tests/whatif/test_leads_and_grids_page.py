"""docs/leads-and-grids.md says what its data say, and its data are what is predicted."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "benchmarks" / "results" / "2026-11-30-leads-and-grids.json").read_text())
PAGE = (ROOT / "docs" / "leads-and-grids.md").read_text()
METHODS = ("forecast resident", "forecast offload-prefetch", "query offload-sync")


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert len(DATA["leads"]) == len(DATA["grids"]) == 5
    for row in DATA["leads"]:
        names = [*(f"lead {lead}" for lead in (1, 2, 4)), *(f"lead {lead}, {lead} resident" for lead in (1, 2, 4))]
        cells = " | ".join(f"{1e3 * row[name]['step_s']:.2f}" for name in names)
        assert f"| {row['link_gb_s']:g} | {cells} |" in PAGE
    for row in DATA["grids"]:
        times = " | ".join(f"{1e3 * row[f'{name} 1']:.2f}, {1e3 * row[f'{name} 16']:.2f}" for name in METHODS)
        assert f"| {row['grid']} | {row['index_bytes'] / 1e9:.3f} | {row['share_of_keys']:.3f} | {times} |" in PAGE


def test_a_longer_lead_never_moves_more_and_waits_less_where_nothing_else_differs() -> None:
    """Where copies nearly hide, the order of operations around the first layers weighs more than one layer's start."""
    for row in DATA["leads"]:
        one, two, four = (row[f"lead {lead}"] for lead in (1, 2, 4))
        assert one["moved"] == two["moved"] == four["moved"]
        assert one["exposed_s"] > four["exposed_s"] < two["exposed_s"]
        assert two["exposed_s"] < one["exposed_s"] + 1e-5


@pytest.mark.parametrize("lead", [1, 2])
def test_the_projections_of_a_longer_lead_are_paid_for(lead: int) -> None:
    """One more own Forecast and one fewer ahead: the same matrices; layers that have both take a little longer."""
    base = Scenario(batch=1, context=8192, budget=96, local=32, churn=0.0, runtime="resident")
    one, other = base.predict(), attrs.evolve(base, lead=lead).predict()
    assert one.step_s <= other.step_s < 1.01 * one.step_s
