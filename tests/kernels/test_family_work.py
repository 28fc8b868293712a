"""Biases and norms of heads, where a model has them, are in the work of its projections and in a prediction."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.compose import compose
from sparda_core.facts import steady_facts
from sparda_core.kernels.linear.work import project_work
from sparda_core.plan import Kind, Op
from sparda_core.selectors.infinigen import PROXY, InfiniGen
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import Work, WorkContext

PLAIN = attrs.evolve(named_shape("smollm2-135m"), layers=3)
SPEC = BlockSpec()
ROWS, QUERY, KEY, WIDTH = 5, 9, 3, 64
FACTS = steady_facts(shape=PLAIN, spec=SPEC, batch=ROWS, context=4000, churn=0.1)


def work(kind: str, *, forecast: bool = False, **family: Any) -> Work:
    context = WorkContext(shape=attrs.evolve(PLAIN, **family), spec=SPEC, forecast=forecast)
    op = Op(kind=kind, layer=1, source=0 if kind == PROXY else 1)
    return InfiniGen().work(op, FACTS, context) if kind == PROXY else project_work(op, FACTS, context)


@pytest.mark.parametrize(
    ("kind", "rows", "normed"), [(Kind.PROJECT, QUERY + 2 * KEY, QUERY + KEY), (PROXY, QUERY, QUERY)]
)
def test_a_bias_is_read_once_and_added_and_norms_of_heads_are_a_launch_more(kind: str, rows: int, normed: int) -> None:
    plain, biased, both = work(kind), work(kind, qkv_bias=True), work(kind, qkv_bias=True, qk_norm=True)
    assert biased.launches == plain.launches
    assert biased.hbm_bytes - plain.hbm_bytes == rows * WIDTH * 2
    assert biased.flops - plain.flops == ROWS * rows * WIDTH
    assert both.launches == plain.launches + 1
    assert both.hbm_bytes - biased.hbm_bytes == (2 * ROWS + 1) * normed * WIDTH * 2
    assert both.flops - biased.flops == 4 * ROWS * normed * WIDTH


def test_a_forecasts_rows_have_a_bias_too_and_no_norm() -> None:
    more = work(Kind.PROJECT, forecast=True, qkv_bias=True).hbm_bytes - work(Kind.PROJECT, forecast=True).hbm_bytes
    assert more == (QUERY + 3 * KEY) * WIDTH * 2  # layer 1 of 3 forecasts layer 2
    normed, plain = (work(Kind.PROJECT, forecast=True, qk_norm=qk_norm) for qk_norm in (True, False))
    assert normed.hbm_bytes - plain.hbm_bytes == (2 * ROWS + 1) * (QUERY + KEY) * WIDTH * 2


def test_a_prediction_takes_longer_where_heads_have_norms() -> None:
    def step_s(**family: Any) -> float:
        pair = compose(attrs.evolve(named_shape("minicpm4.1-8b"), **family), "query", "resident", spec=SPEC)
        return pair.predict("h200", batch=1, context=4000, churn=0.1).step_s

    assert step_s() < step_s(qkv_bias=True) < step_s(qkv_bias=True, qk_norm=True)
