"""What is remembered of windows changes nothing but speed, whatever comes after what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator import windows as module
from sparda_core.simulator.engine import Engine
from sparda_core.simulator.layout import Layout, Stretch
from sparda_core.simulator.profile import Price
from sparda_core.simulator.run import Simulator
from tests.simulator.scenes import plan
from tests.simulator.seats import Seats, busy, no_work
from tests.simulator.test_run_ahead import Beside, prices, told


@attrs.frozen(kw_only=True)
class Story:
    """Steps of one plan, one after another; each as the prices of its operations."""

    made: StepPlan
    steps: list[list[Price]]
    machine: Beside


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A few operations again and again, waiting for each other in the same way but for some; prices that come again."""
    lanes = draw(st.lists(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.COMPUTE, *Lane]), min_size=1, max_size=4))
    usual = [draw(st.lists(st.integers(1, 6), unique=True, max_size=2)) for _ in lanes]
    layers = draw(st.integers(2, 6))
    ops: list[Op] = []
    for layer in range(layers):
        for lane, own in zip(lanes, usual, strict=True):
            other = draw(st.integers(0, 12)) == 0
            backs = draw(st.lists(st.integers(1, 6), unique=True, max_size=2)) if other else own
            after = tuple(ops[-back].name for back in backs if back <= len(ops))
            ops.append(Op(kind=f"op{len(ops)}", layer=layer, lane=lane, after=after))
    few = [draw(st.lists(prices(lane), min_size=1, max_size=2)) for lane in lanes]
    if draw(st.booleans()):
        # Without a host: beside one nothing is remembered.
        few = [[attrs.evolve(price, issue_s=0.0, host_waits=False) for price in each] for each in few]
    count = draw(st.integers(1, 3))
    steps = [[draw(st.sampled_from(few[i % len(lanes)])) for i in range(len(ops))] for _ in range(count)]
    machine = Beside(
        slots=draw(st.sampled_from([0, 4, 8])), compute_lag=draw(st.sampled_from([1.0, 1.3])),
        copy_lag=draw(st.sampled_from([1.0, 1.7])),
    )  # fmt: skip
    return Story(made=plan(*ops), steps=steps, machine=machine)


def tells_the_truth(story: Story) -> bool:
    """Whether one simulator that remembers gives what one gives that does not."""
    simulator, slow = (Simulator(story.made, no_work, story.machine) for _ in range(2))
    want = [told(slow.run(slow.ready(step), coalesce=False)) for step in story.steps]
    # The second time it knows every window.
    return all([told(simulator.run(simulator.ready(step))) for step in story.steps] == want for _ in range(2))


@given(story=stories())
def test_steps_by_memory_are_the_steps_that_they_would_have_been(story: Story) -> None:
    assert tells_the_truth(story)


def layers(count: int, *, late: int = -1) -> StepPlan:
    """Copies for the next layer beside compute; the attention of layer `late` waits for its own layer's."""
    ops = []
    for layer in range(count):
        wait = layer if layer == late else layer - 1
        ops += [
            Op(kind="diff", layer=layer),
            Op(kind="fetch", layer=layer, lane=Lane.H2D, after=(f"diff/{layer}",)),
            Op(kind="attend", layer=layer, after=(f"fetch/{wait}",) if wait >= 0 else ()),
            Op(kind="mlp", layer=layer),
        ]
    return plan(*ops)


def layer_prices(count: int, *, fetch: float = 300, gap: float = 2e-9, wake: float | None = None) -> list[Price]:
    own: dict[str, Any] = {"launch_s": 2e-9}
    copies = busy(fetch, resource="h2d", copies=True, latency_s=5e-9, launch_s=gap, wake_s=wake)
    return [busy(9, **own), copies, busy(100, **own), busy(400, **own)] * count


def calls(simulator: Simulator, prices: list[Price], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often SimPy's loop called for one step."""
    count, wake = 0, Engine._wake

    def counted(self: Engine, event: simpy.Event) -> None:
        nonlocal count
        count += 1
        wake(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_wake", counted)
        simulator.run(simulator.ready(prices))
    return count


def test_a_layer_that_was_met_is_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    four, forty = (Simulator(layers(count), no_work, Seats()) for count in (4, 40))
    assert calls(four, layer_prices(4), monkeypatch) == calls(forty, layer_prices(40), monkeypatch) > 0
    assert calls(forty, layer_prices(40), monkeypatch) == 0
    # One transfer of another length: that layer is simulated, and the others are not.
    other = layer_prices(40)
    other[4 * 20 + 1] = layer_prices(1, fetch=310)[1]
    assert 0 < calls(forty, other, monkeypatch) <= 4


def test_a_whole_step_without_a_quiet_moment_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPERATIONS", 1)
    simulator = Simulator(layers(4), no_work, Seats())
    first = calls(simulator, layer_prices(4), monkeypatch)
    assert calls(simulator, layer_prices(4), monkeypatch) >= first - 2 > 0


def test_memory_that_is_full_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WINDOWS", 3)
    steps = [layer_prices(6, fetch=300 + step) for step in range(5)] * 2
    assert tells_the_truth(Story(made=layers(6), steps=steps, machine=Beside()))


def changed(change: Callable[[Stretch], Stretch]) -> Callable[[pytest.MonkeyPatch], None]:
    real = Layout._stretch

    def wrong(self: Layout, heads: tuple[int, ...], extents: tuple[int, ...]) -> Stretch:
        stretch = real(self, heads, extents)
        return stretch if stretch.form < 0 else change(stretch)

    return lambda patch: patch.setattr(Layout, "_stretch", wrong)


def only_done(stretch: Stretch) -> Stretch:
    return attrs.evolve(stretch, pick=lambda keys: tuple(keys[op] for op in stretch.done))


def shifted_key(patch: pytest.MonkeyPatch) -> None:
    real = module.Windows.stand
    patch.setattr(module.Windows, "stand", lambda self, key: real(self, (*key[:1], 2, *key[2:])))


#: Bugs of the memory: what it takes for equal, and steps that tell it.
SEVERAL = [layer_prices(6), layer_prices(6, fetch=350), layer_prices(6, gap=20e-9), layer_prices(6, wake=1e-9)]
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int]] = {
    "prices": (changed(lambda stretch: attrs.evolve(stretch, pick=lambda keys: None)), -1),
    "the launch that comes next": (changed(only_done), -1),
    "what waits for what": (changed(lambda stretch: attrs.evolve(stretch, form=0)), 4),
    "how long a launch still takes": (shifted_key, -1),
}


@pytest.mark.parametrize("name", list(BUGS))
def test_a_memory_that_overlooks_something_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, late = BUGS[name]
    assert tells_the_truth(Story(made=layers(6, late=late), steps=SEVERAL, machine=Beside()))
    patch(monkeypatch)
    try:
        # An equal plan, of which nothing is known yet.
        noticed = not tells_the_truth(Story(made=layers(6, late=late), steps=SEVERAL, machine=Beside()))
    except (AssertionError, IndexError):
        noticed = True
    assert noticed
