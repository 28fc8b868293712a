"""Schedules whose operations want SMs, share queues, and are issued by a host."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op
from sparda_core.simulator.profile import FLOPS, HBM, LINK, Charge, Grid, Price
from tests.simulator.laws.machine import RATES, Machine, Schedule, short, sizes
from tests.simulator.scenes import plan

#: Few enough SMs that kernels and copies meet.
SMS = 8


def grids(sms: int) -> st.SearchStrategy[Grid]:
    """Of compute kernels: a few waves at most."""
    return st.builds(
        Grid, ctas=st.integers(1, 3 * sms), cluster=st.sampled_from([1, 1, 2]), per_sm=st.sampled_from([1, 2])
    )


@st.composite
def copy_grids(draw: st.DrawFn) -> tuple[Grid, tuple[tuple[float, float], ...]]:
    """Copy thread blocks, and the rates of 1, 2, ... of them: alone, beside compute."""
    cluster = draw(st.sampled_from([1, 1, 2, 4]))
    grid = Grid(ctas=cluster * draw(st.integers(1, SMS // 2 // cluster)), cluster=cluster, whole_sm=True)
    one, share = draw(st.sampled_from([5e9, 8e9, 1.2e10])), draw(st.sampled_from([0.5, 0.8, 1.0]))
    return grid, tuple((one * k, one * k * share) for k in range(1, grid.ctas + 1))


@st.composite
def crowds(draw: st.DrawFn, *, hosts: bool = False, most: int = 8) -> Schedule:
    """Any lawful plan of up to `most` operations; `hosts` puts a host before the device."""
    ops: list[Op] = []
    prices: dict[str, Price] = {}
    for layer in range(draw(st.integers(1, most))):
        lane = draw(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.H2D, Lane.D2H, Lane.HOST]))
        after = draw(st.lists(st.sampled_from([op.name for op in ops]), unique=True, max_size=2)) if ops else []
        op = Op(kind="op", layer=layer, lane=lane, after=tuple(after))
        price = draw(_prices(lane))
        if hosts:
            issue_s = draw(st.sampled_from([0.0, 1e-6, 3e-6]))
            then_s = draw(st.sampled_from([0.0, 0.0, 2e-6]))
            price = attrs.evolve(price, issue_s=issue_s, then_s=then_s, host_waits=draw(st.booleans()) and bool(after))
        prices[op.name] = price
        ops.append(op)
    return Schedule(plan=plan(*ops), machine=Machine(prices=prices, sm_count=SMS))


@st.composite
def _prices(draw: st.DrawFn, lane: Lane) -> Price:
    size, launch_s, latency_s = draw(sizes), draw(short), draw(short)
    through = st.sampled_from([0, 0, size["link"]])
    if lane == Lane.COMPUTE:
        flows = (
            Charge(label=FLOPS, size=size["flops"], uses={"flops": 1.0}, cap=RATES["flops"] / 2),
            Charge(label=HBM, size=size["hbm"], uses={"hbm": 1.0}, cap=RATES["hbm"]),
            # Written through to the host, as an append does: it takes the link from copies.
            Charge(label=LINK, size=draw(through), uses={"d2h": 1.0, "host": 1.0}, cap=4e10),
        )
        return Price(
            launch_s=launch_s, latency_s=latency_s, charges=tuple(flow for flow in flows if flow.size),
            grid=draw(st.none() | grids(SMS)), kernels=draw(st.integers(1, 4)),
            wave_share=draw(st.sampled_from([0.0, 0.25, 1.0])),
        )  # fmt: skip
    uses = {"h2d" if lane == Lane.H2D else "d2h": 1.0, "hbm": 2.0, "host": 1.0}
    charges = (Charge(label=LINK, size=size["link"] + 1, uses=uses, cap=3e10),)
    if lane == Lane.H2D and draw(st.booleans()):
        grid, caps = draw(copy_grids())
        return Price(
            launch_s=launch_s, latency_s=latency_s, charges=charges, copies=True, grid=grid, copy_caps=caps,
            ctas=grid.ctas,
        )  # fmt: skip
    queue = draw(st.sampled_from(["", "engine"]))
    return Price(launch_s=launch_s, latency_s=latency_s, charges=charges, copies=True, queue=queue)
