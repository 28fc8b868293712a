"""Performance disappointments: what users elsewhere learnt too late is told beforehand here (docs/cases.md, E)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparda_core.shapes import BlockSpec
from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[2]
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 131072)
BATCHES = (1, 8)


def step_s(selector: str, runtime: str = "resident", **knobs: object) -> float:
    return float(Scenario(selector=selector, runtime=runtime, **knobs).predict().step_s)  # type: ignore[arg-type]


def test_rows_share_one_link_and_wait_for_each_other() -> None:
    """Eight rows move eight times as much over the same link: a step that waits for copies takes longer by that."""
    alone = step_s("query", "offload-sync", batch=1, churn=0.3) - step_s("query", batch=1)
    eight = step_s("query", "offload-sync", batch=8, churn=0.3) - step_s("query", batch=8)
    assert 6 * alone < eight < 8.5 * alone


def table() -> list[list[str]]:
    """The lines of the page's table of predicted steps, as it stands there."""
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    part = text.partition("## Where sparse attention loses")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| \d.*\|$", part, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows() -> list[list[str]]:
    """What the table should say today."""
    found = []
    for batch in BATCHES:
        for context in CONTEXTS:
            dense, query, forecast = (
                step_s(name, batch=batch, context=context) for name in ("dense", "query", "forecast")
            )
            best = min((dense, "dense"), (query, "query"), (forecast, "forecast"))[1]
            found.append([str(batch), f"{context:,}", *(f"{1e3 * s:.2f}" for s in (dense, query, forecast)), best])
    return found


def test_the_page_says_where_sparse_attention_loses() -> None:
    assert table() == rows()
    assert {"dense", "forecast"} <= {row[-1] for row in rows()}


@pytest.mark.parametrize("budget", [34, 35, 96])
def test_a_budget_counts_every_block_that_is_attended(budget: int) -> None:
    """Sink, local band and the free ones: two methods of one budget read the same bytes."""
    spec = BlockSpec(sink=1, local=32, budget=budget)
    assert spec.forced == 34
    for position in (0, 64 * 33, 64 * 5000):
        assert len(spec.forced_blocks(position)) <= budget
