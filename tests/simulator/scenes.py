"""Small plans, round-numbered machines and work tables that the tests of the simulator share."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.cpu import CpuProfile, KindCost
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_parts import Compute, CopyEngine, Launch, Link, Memory, Uva
from sparda_core.simulator.quantity import Basis, BendCurve, PieceCurve, Quantity, WaveShare
from sparda_core.simulator.run import WorkOfOp
from sparda_core.work import Work, WorkContext

TINY = ModelShape(name="tiny", layers=3, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=4096)
SPEC = BlockSpec(block=16, window=8, stride=4, local=1, budget=6)
CONTEXT = WorkContext(shape=TINY, spec=SPEC)


def quantity(value: float, unit: str) -> Quantity:
    return Quantity(value=value, unit=unit, source="made up", basis=Basis.PRIOR)


def gpu(
    *, hbm: float = 1e12, flop: float = 1e14, link: float = 5e10, both: float | None = None, gap_s: float = 0.0,
    eager_s: float = 0.0, step_s: float = 0.0, slower: float = 1.0, kernel: float | None = None,
) -> GpuProfile:  # fmt: skip
    """A GPU of round numbers; one copy CTA fills any link, and slows compute by `slower`.

    Products leave nearly all SMs free where nothing is slowed, else none.
    """
    return GpuProfile(
        name="round", title="a machine of round numbers", date="2026-11-30",
        memory=Memory(
            hbm_bytes=quantity(64e9, "B"), reserved_bytes=quantity(0, "B"), host_bytes=quantity(256e9, "B"),
            hbm_bytes_per_s=quantity(hbm, "B/s"), kernel_bytes_per_s=quantity(kernel or hbm, "B/s"),
            host_bytes_per_s=quantity(1e15, "B/s"), link_hbm_weight=quantity(1, "1"),
        ),
        compute=Compute(
            sms=quantity(100, "1"), flop_per_s=quantity(flop, "FLOP/s"),
            product_ctas=quantity(2 if slower == 1 else 100, "1"), product_cluster=quantity(2, "1"),
            wave_share=WaveShare(tokens=(256,), share=(slower - 1,), source="made up", basis=Basis.PRIOR),
        ),
        launch=Launch(
            graph_s=quantity(gap_s, "s"), eager_s=quantity(eager_s, "s"), step_s=quantity(step_s, "s"),
            list_s=quantity(0, "s"),
        ),
        link=Link(
            kind="c2c", h2d_bytes_per_s=quantity(link, "B/s"),
            d2h_bytes_per_s=quantity(link, "B/s"), both_ways_bytes_per_s=quantity(both or link, "B/s"),
        ),
        uva=Uva(
            ceiling_bytes_per_s=quantity(link, "B/s"), in_flight_bytes=quantity(1e9, "B"),
            round_trip_s=quantity(0, "s"), repeated_round_trip_s=quantity(0, "s"),
            cta_bytes_per_s=quantity(1e15, "B/s"), beside_bytes_per_s=quantity(1e15, "B/s"),
            late_bytes_per_s=quantity(1e15, "B/s"),
            drag_per_byte=quantity(0, "1/B"), drag_most_bytes=quantity(1e9, "B"), sm_in_flight_bytes=quantity(1e9, "B"),
            beside_bend=BendCurve(tokens=(256,), bend=(100,), source="made up", basis=Basis.PRIOR),
            late_bend=BendCurve(tokens=(256,), bend=(100,), source="made up", basis=Basis.PRIOR),
        ),
        copy_engine=CopyEngine(
            call_s=quantity(0, "s"), whole_bytes_per_s=quantity(link, "B/s"),
            pieces=PieceCurve(piece_bytes=(1,), bytes_per_s=(1e15,), source="made up", basis=Basis.PRIOR),
        ),
        extrapolate=True,
    )  # fmt: skip


def cpu(
    costs: Mapping[str, KindCost], *, dispatch_s: float = 0.0, wake_s: float = 0.0, copy_start_s: float = 0.0
) -> CpuProfile:
    return CpuProfile(
        name="bench", title="a made-up CPU", date="2026-11-30", ram_bytes=quantity(8e9, "B"),
        dispatch_s=quantity(dispatch_s, "s"), wake_s=quantity(wake_s, "s"), copy_start_s=quantity(copy_start_s, "s"),
        between_steps_s=quantity(0, "s"), costs=dict(costs),
    )  # fmt: skip


def plan(*ops: Op, engine: str = "uva", resident: int = 0) -> StepPlan:
    return StepPlan(
        ops=ops, phase=Phase.DECODE, runtime="by hand", selector="by hand", lead=1, resident_layers=resident,
        engine=engine,
    )  # fmt: skip


def pipeline(layers: int, *, early: bool, engine: str = "uva", fetch: bool = True) -> StepPlan:
    """project, select and diff for the next layer (or its own), fetch, attend; all layers but the first fetch."""
    ops = []
    for layer in range(layers):
        ops.append(Op(kind=Kind.PROJECT, layer=layer))
        target = layer + 1 if early else layer
        if fetch and 0 < target < layers:
            ops += [
                Op(kind=Kind.DIFF, layer=target, source=layer),
                Op(kind=Kind.FETCH, layer=target, source=layer, lane=Lane.H2D, after=(f"diff/{target}",)),
            ]
        wait = (f"fetch/{layer}",) if fetch and layer else ()
        ops += [Op(kind=Kind.ATTEND, layer=layer, after=wait), Op(kind=Kind.MLP, layer=layer)]
    return plan(*ops, engine=engine, resident=1)


def by_kind(table: Mapping[str, Work]) -> WorkOfOp:
    """Work looked up by kind, else by name."""
    return lambda op, _: table[op.name] if op.name in table else table[op.kind]


def facts(*, rows: int = 1, layers: int = 3, length: int = 100, slots: int = 6) -> StepFacts:
    none = np.zeros((layers, rows, 2), np.int64)
    return StepFacts(
        new_tokens=1, budget=6, slots=slots, active=np.ones(rows), lengths=np.full(rows, length),
        selected=none + 6, misses=none, opened=none, late=none, wasted=none,
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class ByHand(Selector):
    """A selector that exists on paper only."""

    name = "by hand"
    lead: int | None = 1

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        return ("score", "select")

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return Work(flops=1.0)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        raise NotImplementedError
