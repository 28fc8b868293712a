"""Running ahead changes nothing but speed: the same spans to the nanosecond and the same flows to the bit."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator.profile import Charge, Grid, Price
from sparda_core.simulator.run import Simulator, Step
from tests.simulator.scenes import plan
from tests.simulator.seats import UNIT, Seats, no_work

odd_ns = st.one_of(st.integers(0, 400).map(float), st.floats(0, 400))
seconds = st.sampled_from([0.0, 1e-9, 3.4e-9, 17e-9])
grids = st.one_of(
    st.none(), st.builds(Grid, ctas=st.integers(1, 20), cluster=st.sampled_from([1, 2, 4]), per_sm=st.integers(1, 2))
)


@attrs.frozen(kw_only=True)
class Beside(Seats):
    """Slowdowns that differ by who asks and by who runs beside."""

    compute_lag: float = 1.0
    copy_lag: float = 1.0

    def slowdown(self, mine: Price, others: Any) -> float:
        if mine.copies:
            return self.copy_lag if any(not other.copies for other in others) else 1.0
        return self.compute_lag if any(other.copies for other in others) else 1.0


@st.composite
def charges(draw: st.DrawFn, *, copies: bool) -> tuple[Charge, ...]:
    names = ("h2d", "host", "hbm") if copies else ("flops", "hbm", "host")
    made = []
    for _ in range(draw(st.integers(0, 2))):
        uses = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0.1, 0.3, 1.0]), max_size=2))
        cap = draw(st.sampled_from([0.3, 0.5, 0.77, 1.0, 1.9])) * UNIT
        made.append(Charge(label=draw(st.sampled_from(["a", "b"])), size=draw(odd_ns), uses=uses, cap=cap))
    return tuple(made)


@st.composite
def prices(draw: st.DrawFn, lane: Lane) -> Price:
    copies = lane != Lane.COMPUTE
    common: dict[str, Any] = {
        "launch_s": draw(seconds), "latency_s": draw(seconds), "charges": draw(charges(copies=copies)),
        "wake_s": draw(st.sampled_from([None, None, 2e-9])), "copies": copies,
        "issue_s": draw(st.sampled_from([0.0, 0.0, 0.0, 5e-9])), "host_waits": draw(st.integers(0, 20)) == 0,
        "queue": draw(st.sampled_from(["", "", "dma"])) if copies else "",
    }  # fmt: skip
    if not copies:
        return Price(**common, grid=draw(grids), kernels=draw(st.integers(1, 3)), wave_share=draw(odd_ns) / 400)
    if draw(st.booleans()):
        return Price(**common)
    ctas = draw(st.integers(1, 4))
    rates = st.sampled_from([0.2, 0.4, 0.9])
    caps = tuple((alone * UNIT, alone * draw(rates) * UNIT) for alone in draw(st.lists(rates, min_size=4, max_size=4)))
    grid = Grid(ctas=ctas, cluster=draw(st.sampled_from([1, 1, 2])), whole_sm=True)
    return Price(**common, grid=grid, copy_caps=draw(st.sampled_from([(), caps])))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[StepPlan, list[Price], Beside]:
    """Any lawful plan of up to 16 operations on four lanes; a few kinds of operations that come again and again."""
    kinds = {lane: draw(st.lists(prices(lane), min_size=1, max_size=3)) for lane in Lane}
    ops: list[Op] = []
    costs: list[Price] = []
    for layer in range(draw(st.integers(1, 16))):
        lane = draw(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.COMPUTE, *Lane]))
        names = [op.name for op in ops]
        after = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
        ops.append(Op(kind="op", layer=layer, lane=lane, after=tuple(after)))
        costs.append(draw(st.sampled_from(kinds[lane])))
    machine = Beside(
        slots=draw(st.sampled_from([0, 4, 7, 8])), host=draw(st.sampled_from([0.3, 1.0])) * UNIT,
        compute_lag=draw(st.sampled_from([1.0, 1.3])), copy_lag=draw(st.sampled_from([1.0, 1.7])),
    )  # fmt: skip
    return plan(*ops), costs, machine


def told(step: Step) -> object:
    return step.long_ns, step._ledger.starts, step._ledger.ends, step._ledger.flow_ends


@settings(max_examples=300)
@given(scene=scenes())
def test_running_ahead_gives_the_same_step(scene: tuple[StepPlan, list[Price], Beside]) -> None:
    made, costs, machine = scene
    simulator = Simulator(made, no_work, machine)
    bill = simulator.ready(costs)
    slowly = told(simulator.run(bill, coalesce=False))
    assert told(simulator.run(bill)) == slowly
    # The second time it knows every program.
    assert told(simulator.run(bill)) == slowly
    assert told(simulator.run(bill, lambda *_: None)) == slowly
