"""Queues serve one at a time, the host issues one at a time, machines of one host share what they share."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, ProfileError
from sparda_core.plan import Lane, Op
from sparda_core.simulator.profile import LINK, Charge, Price
from sparda_core.simulator.run import Simulator, run_step
from tests.simulator.scenes import by_kind, facts, gpu, plan
from tests.simulator.seats import UNIT, Seats, busy, no_work, ran


def dma(ns: float, **price: float) -> Price:
    return busy(ns, resource="h2d", label=LINK, copies=True, queue="dma", **price)


def test_a_queue_serves_in_order_of_readiness_whatever_the_lane() -> None:
    made = plan(Op(kind="x", lane=Lane.H2D), Op(kind="y", lane=Lane.D2H), Op(kind="z", lane=Lane.HOST))
    costs = [dma(100, launch_s=3e-9), dma(100, launch_s=2e-9), dma(100, launch_s=1e-9)]
    assert ran(made, costs) == {"z": (1, 101), "y": (101, 201), "x": (201, 301)}


def test_who_is_ready_at_the_same_time_is_served_in_plan_order() -> None:
    made = plan(Op(kind="z", lane=Lane.HOST), Op(kind="y", lane=Lane.D2H), Op(kind="x", lane=Lane.H2D))
    assert ran(made, [dma(100)] * 3) == {"z": (0, 100), "y": (100, 200), "x": (200, 300)}


def test_without_a_queue_they_share() -> None:
    made = plan(Op(kind="x", lane=Lane.H2D), Op(kind="y", lane=Lane.D2H))
    assert ran(made, [attrs.evolve(dma(100), queue="")] * 2) == {"x": (0, 200), "y": (0, 200)}
    assert ran(made, [dma(100)] * 2) == {"x": (0, 100), "y": (100, 200)}


def test_the_head_of_a_queue_blocks_whoever_is_behind_it() -> None:
    made = plan(Op(kind="long", lane=Lane.H2D), Op(kind="short", lane=Lane.D2H), Op(kind="a", after=("short",)))
    assert ran(made, [dma(1000), dma(1), busy(10)])["a"] == (1001, 1011)


def test_the_host_issues_one_operation_after_another_in_plan_order() -> None:
    made = plan(Op(kind="a"), Op(kind="c", lane=Lane.H2D), Op(kind="b"))
    slow: dict[str, Any] = {"issue_s": 50e-9}
    assert ran(made, [busy(10, **slow), busy(10, resource="h2d", copies=True, **slow), busy(200, **slow)]) == {
        "a": (50, 60), "c": (100, 110), "b": (150, 350),
    }  # fmt: skip


def test_a_host_that_waits_holds_up_all_that_follows_in_the_plan() -> None:
    made = plan(Op(kind="a"), Op(kind="c", lane=Lane.H2D, after=("a",)), Op(kind="b"))
    costs = [
        busy(100, issue_s=10e-9), busy(100, resource="h2d", copies=True, issue_s=20e-9, host_waits=True),
        busy(100, issue_s=30e-9),
    ]  # fmt: skip
    # The list is read when `a` has ended at 110; then 20 for the copy, 30 for `b`, which waits for nothing else.
    assert ran(made, costs) == {"a": (10, 110), "c": (130, 230), "b": (160, 260)}
    at_once = [attrs.evolve(price, host_waits=False) for price in costs]
    assert ran(made, at_once) == {"a": (10, 110), "c": (110, 210), "b": (110, 210)}


def test_a_host_that_comes_late_does_not_wait() -> None:
    made = plan(Op(kind="a"), Op(kind="b"), Op(kind="c", lane=Lane.H2D, after=("a",)))
    costs = [busy(10), busy(10, issue_s=500e-9), busy(10, resource="h2d", copies=True, issue_s=7e-9, host_waits=True)]
    assert ran(made, costs)["c"] == (507, 517)


def test_in_one_graph_the_host_plays_no_part() -> None:
    made = plan(Op(kind="a"), Op(kind="b"))
    simulator = Simulator(made, no_work, Seats())
    assert not simulator.ready([busy(1), busy(1)]).host
    assert simulator.ready([busy(1), busy(1, host_waits=True)]).host


def shared(ns: float) -> Price:
    flow = Charge(label=LINK, size=ns, uses={"h2d": 1.0, "host": 1.0}, cap=UNIT)
    return Price(charges=(flow,), copies=True)


def test_two_machines_of_one_host_halve_its_memory_and_nothing_else() -> None:
    made = plan(Op(kind="a"), Op(kind="c", lane=Lane.H2D))
    costs = [busy(100), shared(100)]
    assert ran(made, costs, Seats(share_host=True), replicas=2) == {"a": (0, 100), "c": (0, 200)}
    assert ran(made, costs, Seats(share_host=False), replicas=2) == {"a": (0, 100), "c": (0, 100)}


@given(
    sizes=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=5),
    replicas=st.sampled_from([2, 4]), host=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
)  # fmt: skip
def test_machines_in_lockstep_are_one_machine_with_its_part_of_what_is_shared(
    sizes: list[tuple[int, int]], replicas: int, host: float
) -> None:
    made = plan(
        *(
            op
            for layer in range(len(sizes))
            for op in (Op(kind="c", layer=layer, lane=Lane.H2D), Op(kind="a", layer=layer, after=(f"c/{layer}",)))
        )
    )
    costs = [cost for up, down in sizes for cost in (shared(up), busy(down))]
    machine = Seats(share_host=True, host=host * UNIT)
    one_by_one = ran(made, costs, machine, replicas=replicas)
    one = Simulator(made, no_work, machine, split=replicas)
    got = {span.name: (span.start_ns, span.end_ns) for span in one.run(one.ready(costs)).spans()}
    assert got == one_by_one


def test_every_machine_has_its_own_sms_and_counters() -> None:
    seen: list[dict[str, float]] = []
    simulator = Simulator(plan(Op(kind="a")), no_work, Seats(share_host=True), replicas=2)
    simulator.run(simulator.ready([busy(10)]), lambda _, told: seen.append(told))
    assert seen[0].keys() == {
        "host", "flops@0", "hbm@0", "h2d@0", "flops@1", "hbm@1", "h2d@1", "sms_compute@0", "sms_copy@0",
        "sms_compute@1", "sms_copy@1",
    }  # fmt: skip


def test_no_machine_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicas=0"):
        run_step(plan(Op(kind="a")), facts(), by_kind({}), gpu(), replicas=0)


def test_sharing_what_does_not_exist_is_refused() -> None:
    @attrs.frozen(kw_only=True)
    class Odd(Seats):
        @property
        def shared(self) -> frozenset[str]:
            return frozenset({"hots"})

    with pytest.raises(ProfileError, match=r"shares \['hots'\]"):
        Simulator(plan(Op(kind="a")), no_work, Odd())
