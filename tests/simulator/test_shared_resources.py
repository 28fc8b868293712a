"""Shared resources by hand: who gets what beside whom, wake-ups that do not pile up, and what is refused."""

from __future__ import annotations

import math

import pytest

from sparda_core.errors import ConfigError
from sparda_core.plan import Lane, Op
from sparda_core.simulator.engine import Engine
from sparda_core.simulator.fairshare import demand
from sparda_core.simulator.fluid import Rates
from sparda_core.simulator.run import Simulator
from tests.simulator.laws.flows import UNIT, Job, Load, ends, on_link
from tests.simulator.scenes import plan
from tests.simulator.seats import Seats, busy, no_work


def test_the_second_of_two_equal_flows_delays_the_first() -> None:
    assert ends(on_link((0, 1000), (50, 1000))) == (1950, 2000)


def test_three_flows_finish_when_computed_by_hand() -> None:
    # 1/3 each until 3000 (first done), 1/2 each until 5000, then the last alone.
    assert ends(on_link((0, 1000), (0, 2000), (0, 3000))) == (3000, 5000, 6000)


def test_a_capped_flow_leaves_the_rest_to_the_others() -> None:
    assert ends(Load((Job(0, 1000, cap=0.2 * UNIT), Job(0, 1000)))) == (5000, 1250)


def test_a_flow_is_held_by_the_tightest_of_its_resources() -> None:
    both = Job(0, 1000, {"link": 1.0, "memory": 1.0})
    assert ends(Load((both, Job(0, 4000)), {"link": UNIT, "memory": 0.2 * UNIT})) == (5000, 5000)


def test_a_byte_that_takes_of_the_other_direction_too_slows_both() -> None:
    up, down = Job(0, 1000, {"up": 1.0, "down": 0.25}), Job(0, 1000, {"down": 1.0, "up": 0.25})
    assert ends(Load((up, down), {"up": UNIT, "down": UNIT})) == (1250, 1250)
    assert ends(Load((up,), {"up": UNIT, "down": UNIT})) == (1000,)


def test_a_flow_of_nothing_is_done_at_once() -> None:
    assert ends(on_link((3, 0.0))) == (3,)


def test_one_wake_up_is_armed_at_a_time_while_short_flows_pass_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    armed = []
    arm = Engine._arm

    def counted(self: Engine) -> None:
        arm(self)
        armed.append(len(self._env._queue))

    monkeypatch.setattr(Engine, "_arm", counted)
    short = [Op(kind="short", layer=layer, lane=Lane.D2H) for layer in range(500)]
    made = plan(Op(kind="long", layer=0, lane=Lane.H2D), *short)
    prices = [busy(20_000, copies=True), *[busy(10, launch_s=7e-9, copies=True) for _ in short]]
    simulator = Simulator(made, no_work, Seats())
    simulator.run(simulator.ready(prices))
    assert len(armed) > 900
    assert set(armed) == {1}


def test_an_unknown_resource_is_refused() -> None:
    with pytest.raises(ConfigError, match="known resources: \\['link'\\]"):
        Rates({"link": UNIT}).kind(demand({"lnk": 1.0}, 1.0))


@pytest.mark.parametrize(("uses", "cap", "says"), [({}, math.inf, "neither"), ({"link": 1.0}, 0.0, "cap=0")])
def test_an_impossible_demand_is_refused(uses: dict[str, float], cap: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        demand(uses, cap)


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity of 'link' is 0"):
        Rates({"link": 0.0})
