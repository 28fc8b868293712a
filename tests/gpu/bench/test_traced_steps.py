"""Rows without a history, slots warmed by a trace, and steps whose misses the trace decides."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.bench.decode.cell import Cell  # isort: skip
from sparda_core.bench.decode.fill import claim_rows, fill_random, warm_slots
from sparda_core.bench.decode.trace import batch_trace
from sparda_core.bench.decode.traced import Traced
from sparda_core.compose import compose
from sparda_core.models.synthetic import synthetic_model
from sparda_core.registry import SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.residency import Pools

SHAPE = ModelShape(
    name="small", layers=3, hidden=64, ffn=96, q_heads=4, kv_heads=2, head_dim=32, vocab=61, context=1024
)
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=2, budget=10)
STEPS, CONTEXT, BATCH = 4, 511, 2


@pytest.mark.parametrize(("policy", "slots"), [("last-selection", 10), ("lru", 24)])
def test_misses_of_a_traced_step_are_those_of_the_played_trace(policy: str, slots: int) -> None:
    model = synthetic_model(SHAPE, device=DEVICE, dtype=torch.float32)
    locality = attrs.evolve(load_locality("hisparse"), churn=0.2)
    trace = batch_trace(locality, shape=SHAPE, spec=SPEC, batch=BATCH, context=CONTEXT, steps=STEPS)
    selector = Traced(inner=SELECTORS.make("forecast"), trace=trace, before=trace.history)
    pair = compose(
        model, selector, "offload-prefetch", spec=SPEC,
        runtime_options={"policy": policy, "slots": slots, "engine": "uva"},
    )  # fmt: skip
    cell = Cell(selector="forecast", runtime="offload-prefetch", batch=BATCH, context=CONTEXT)
    options = GpuOptions(places=BATCH, tokens=CONTEXT + STEPS, page_blocks=4)
    with GpuSession(
        model, runtime=pair.runtime, selector=selector, spec=SPEC, options=options
    ) as session:
        claim_rows(session, cell)
        fill_random(session, seed=0)
        warm_slots(session, trace)
        blocks = SPEC.block_count(CONTEXT + STEPS)
        pools = Pools(streams=trace.before.shape[0], slots=slots, policy=policy, blocks=blocks)
        pools.warm(trace.before, trace.stack)
        session.run(1, dict.fromkeys(session.rows, 1))
        for step in range(STEPS):
            position = CONTEXT + step
            opened = position // SPEC.block if position % SPEC.block == 0 else -1
            played = pools.play(trace.selections[step], np.full(trace.before.shape[0], opened))
            facts = session.last_facts()
            assert (facts.misses[1:] == played[trace.streams[1:]]).all()
            assert facts.misses[1:].sum() > 0
            if step + 1 < STEPS:
                session.run(1)


def test_slots_that_no_trace_fills_take_no_blocks_entry() -> None:
    slots = SPEC.block_count(CONTEXT + STEPS) + 7
    model = synthetic_model(SHAPE, device=DEVICE, dtype=torch.float32)
    trace = batch_trace(
        load_locality("hisparse"), shape=SHAPE, spec=SPEC, batch=BATCH, context=CONTEXT, steps=STEPS
    )  # fmt: skip
    selector = Traced(inner=SELECTORS.make("forecast"), trace=trace, before=trace.history)
    pair = compose(
        model, selector, "offload-prefetch", spec=SPEC,
        runtime_options={"policy": "lru", "slots": slots, "engine": "uva"},
    )  # fmt: skip
    options = GpuOptions(places=BATCH, tokens=CONTEXT + STEPS, page_blocks=4)
    with GpuSession(model, runtime=pair.runtime, selector=pair.selector, spec=SPEC, options=options) as session:
        claim_rows(session, Cell(selector="forecast", runtime="offload-prefetch", batch=BATCH, context=CONTEXT))
        warm_slots(session, trace)
        tables = session.machinery.tiers.layers[1].slots
        assert tables is not None
        held, where = tables.held.cpu().numpy(), tables.where.cpu().numpy()
        assert (held < 0).any()
        for place, head, slot in np.argwhere(held >= 0):
            assert where[place, head, held[place, head, slot]] == slot
        assert (where >= 0).sum() == (held >= 0).sum()
