from __future__ import annotations

import attrs

from sparda_core.facts import steady_facts
from sparda_core.kernels.diff.work import work
from sparda_core.plan import Op
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import WorkContext

SHAPE, SPEC = named_shape("smollm2-135m"), BlockSpec()
CONTEXT = WorkContext(shape=SHAPE, spec=SPEC)


def test_a_diff_works_on_every_row_and_head_and_moves_nothing_over_the_link() -> None:
    op = Op(kind="diff", layer=2)
    one, four = (
        work(op, steady_facts(shape=SHAPE, spec=SPEC, batch=rows, context=4096, churn=0.25), CONTEXT) for rows in (1, 4)
    )
    assert (one.ctas, four.ctas) == (SHAPE.kv_heads, 4 * SHAPE.kv_heads)
    assert four.hbm_bytes == 4 * one.hbm_bytes > 0
    assert one.h2d_bytes == one.d2h_bytes == one.flops == 0


def test_more_slots_or_misses_cost_a_diff_more_bytes() -> None:
    op = Op(kind="diff", layer=2)
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=2, context=4096, churn=0.1)
    base = work(op, facts, CONTEXT).hbm_bytes
    assert work(op, attrs.evolve(facts, slots=64), CONTEXT).hbm_bytes > base
    assert work(op, attrs.evolve(facts, misses=facts.misses + 1), CONTEXT).hbm_bytes > base
