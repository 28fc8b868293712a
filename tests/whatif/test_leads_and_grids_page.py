"""docs/leads-and-grids.md says what its data say, and its data are what is predicted."""

from __future__ import annotations

import json

import attrs
import pytest

from benchmarks.leads_and_grids import BASE, CHURN, EQUAL, LINKS, RESULTS, filled
from benchmarks.leads_and_grids import PAGE as PLACE
from sparda_core.whatif.scenario import Scenario

KEPT = max(RESULTS.glob("*-leads-and-grids.json"))
DATA = json.loads(KEPT.read_text())
PAGE = PLACE.read_text()
#: A tick of the simulator's clock, and what adding ticks up in seconds rounds.
TICK_S = 1.5e-9


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert len(DATA["leads"]) == len(DATA["grids"]) == 5
    assert PAGE.count("<!-- table: ") == 2
    assert filled(PAGE, DATA, KEPT.name) == PAGE
    row = DATA["leads"][0]
    assert f"| {row['link_gb_s']:g} | {1e3 * row['lead 1']['step_s']:.2f} |" in PAGE


def test_the_data_are_what_is_predicted_today() -> None:
    """One cell of each table, to the last digit that the page shows."""
    again = "run python -m benchmarks.leads_and_grids --page"
    lead = attrs.evolve(BASE, churn=CHURN, link_gb_s=LINKS[0], lead=2, resident_layers=EQUAL).predict()
    assert lead.step_s == pytest.approx(DATA["leads"][0]["lead 2"]["step_s"], abs=5e-6), again
    grid = attrs.evolve(BASE, churn=CHURN, selector="query", runtime="offload-sync").predict()
    assert grid.step_s == pytest.approx(DATA["grids"][0]["query offload-sync 16"], abs=5e-6), again


def test_a_longer_lead_never_moves_more_and_waits_less_where_nothing_else_differs() -> None:
    """Where copies nearly hide, the order of operations around the first layers weighs more than one layer's start."""
    for row in DATA["leads"]:
        one, two, four = (row[f"lead {lead}"] for lead in (1, 2, 4))
        assert one["moved"] == two["moved"] == four["moved"]
        assert one["exposed_s"] > four["exposed_s"] < two["exposed_s"]
        assert two["exposed_s"] < one["exposed_s"] + 1e-5


@pytest.mark.parametrize("lead", [1, 2])
def test_the_projections_of_a_longer_lead_are_paid_for(lead: int) -> None:
    """One more own Forecast and one fewer ahead: the same matrices, up to a tick of the clock."""
    base = Scenario(batch=1, context=8192, budget=96, local=32, churn=0.0, runtime="resident")
    one, other = base.predict(), attrs.evolve(base, lead=lead).predict()
    assert one.step_s <= other.step_s + TICK_S
    assert other.step_s < 1.01 * one.step_s
