"""Running ahead changes nothing but speed: the same spans to the nanosecond and the same flows to the bit."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator.engine import Engine
from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.profile import Charge, Grid, Price
from sparda_core.simulator.run import Simulator, Step
from tests.simulator.scenes import plan
from tests.simulator.seats import UNIT, Seats, busy, no_work

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
    cluster = draw(st.sampled_from([1, 1, 2]))
    per_sm = draw(st.sampled_from([1, 1, 2])) if cluster == 1 else 1
    grid = Grid(ctas=ctas, cluster=cluster, per_sm=per_sm, whole_sm=True)
    if draw(st.booleans()):
        return Price(**common, grid=grid)
    late = tuple(beside / 2 for _, beside in caps)
    return Price(**common, grid=grid, copy_caps=caps, late_caps=draw(st.sampled_from([(), late])))


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


#: Four layers of a prefetching runtime on the lanes that matter: a copy for the next layer beside compute.
LAYERS = plan(
    *(
        op
        for layer in range(4)
        for op in (
            Op(kind="diff", layer=layer),
            Op(kind="fetch", layer=layer, lane=Lane.H2D, after=(f"diff/{layer}",)),
            Op(kind="attend", layer=layer, after=(f"fetch/{layer - 1}",) if layer else ()),
            Op(kind="output", layer=layer),
            Op(kind="mlp", layer=layer),
        )
    )
)


def layer_prices(*, contends: bool) -> list[Price]:
    """The copy takes of a resource that compute uses to the full, or of its own."""
    gap: dict[str, Any] = {"launch_s": 2e-9}
    fetch = busy(300, resource="flops" if contends else "h2d", copies=True, latency_s=5e-9, **gap)
    return [busy(9, **gap), fetch, busy(100, **gap), busy(50, **gap), busy(400, **gap)] * 4


def calls(*, coalesce: bool, contends: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often SimPy's loop called for one step."""
    count = 0
    wake = Engine._wake

    def counted(self: Engine, event: simpy.Event) -> None:
        nonlocal count
        count += 1
        wake(self, event)

    simulator = Simulator(LAYERS, no_work, Seats())
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_wake", counted)
        simulator.run(simulator.ready(layer_prices(contends=contends)), coalesce=coalesce)
    return count


def test_running_ahead_asks_the_loop_only_where_another_lane_does_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for contends in (False, True):
        # A copy's start, the start of its flow, its end.
        ahead = calls(coalesce=True, contends=contends, monkeypatch=monkeypatch)
        assert ahead <= 4 * 3 + 1
        assert calls(coalesce=False, contends=contends, monkeypatch=monkeypatch) > 3 * ahead


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("sparda_core.simulator.ahead._horizon_ns", lambda engine: NEVER),
        ("sparda_core.simulator.engine.Engine._plan_fails", lambda *_: False),
        ("sparda_core.simulator.track.Track.set_rates", lambda *_: None),
    ],
    ids=["a horizon overlooked", "a program that outlives what it rests on", "rates that nobody sets"],
)
def test_running_too_far_ahead_would_be_noticed(target: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(LAYERS, no_work, Seats())
    bill = simulator.ready(layer_prices(contends=True))
    slowly = told(simulator.run(bill, coalesce=False))
    assert told(simulator.run(bill)) == slowly
    monkeypatch.setattr(target, wrong)
    # Another one, which remembers nothing.
    simulator = Simulator(LAYERS, no_work, Seats())
    try:
        fast = told(simulator.run(simulator.ready(layer_prices(contends=True))))
    except (AssertionError, ZeroDivisionError):
        return
    assert fast != slowly
