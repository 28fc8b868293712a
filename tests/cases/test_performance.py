"""Performance disappointments: what users elsewhere learnt too late is told beforehand here (docs/cases.md, E)."""

from __future__ import annotations

import pytest

from benchmarks.cases_page import PAGE, filled, rows
from sparda_core.shapes import BlockSpec
from sparda_core.whatif.scenario import Scenario


def step_s(selector: str, runtime: str = "resident", **knobs: object) -> float:
    return float(Scenario(selector=selector, runtime=runtime, **knobs).predict().step_s)  # type: ignore[arg-type]


def test_rows_share_one_link_and_wait_for_each_other() -> None:
    """Eight rows move eight times as much over the same link: a step that waits for copies takes longer by that."""
    alone = step_s("query", "offload-sync", batch=1, churn=0.3) - step_s("query", batch=1)
    eight = step_s("query", "offload-sync", batch=8, churn=0.3) - step_s("query", batch=8)
    assert 6 * alone < eight < 8.5 * alone


def test_the_page_says_where_sparse_attention_loses() -> None:
    """`python -m benchmarks.cases_page` fills it again."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page)
    fastest = [row[-1] for row in rows()]
    assert {"dense", "forecast"} <= set(fastest)
    assert page.count("| dense |\n") + page.count("| forecast |\n") + page.count("| query |\n") == len(fastest)


@pytest.mark.parametrize("budget", [34, 35, 96])
def test_a_budget_counts_every_block_that_is_attended(budget: int) -> None:
    """Sink, local band and the free ones: two methods of one budget read the same bytes."""
    spec = BlockSpec(sink=1, local=32, budget=budget)
    assert spec.forced == 34
    for position in (0, 64 * 33, 64 * 5000):
        assert len(spec.forced_blocks(position)) <= budget
