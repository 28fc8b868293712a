"""One copy for all layers of a captured step: the same as a copy a layer, whichever lane is late."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparda_core.errors import ConfigError
from sparda_core.kernels.tables import LayerLists, Paged
from sparda_core.plan import Kind, Lane, Op
from sparda_core.runtimes.gpu.engines import Uva
from sparda_core.runtimes.gpu.executor import pieces_of
from sparda_core.runtimes.gpu.graphs import Captured, Eager
from sparda_core.runtimes.gpu.options import CopySize
from tests.gpu.session.test_graphs import filled, opened, same_outcome, slow_compute, spin
from tests.gpu.session.test_lanes import PAIRS, Clocks, plan_of
from tests.gpu.session.worlds import SHAPE
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
DEEP = attrs.evolve(SHAPE, layers=6, q_heads=4, kv_heads=2)
#: On a GPU, steps with both kinds of copy; by the interpreter, one step of each.
STEPS = 64 if ON_GPU else 1
ONE: dict[str, Any] = {"copy_launch": "step"}
CASES = [
    ("forecast", "offload-prefetch", {"policy": "lru", "slots": 6}, {}),
    ("forecast", "offload-prefetch", {}, {"copy_rule": "paper"}),
    ("forecast", "offload-prefetch", {}, {"host_dtype": "fp8"}),
    ("query", "offload-sync", {}, {}),
]


@pytest.mark.parametrize(("selector", "runtime", "options", "more"), CASES if ON_GPU else CASES[1:3])
def test_one_copy_a_step_gives_what_a_copy_a_layer_gives(
    selector: str, runtime: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    """Only the last of two layers is offloaded without a GPU, so that its list is whole when the copy begins."""
    with (
        opened(selector, runtime, options, **more) as layers,
        opened(selector, runtime, options, **more, **ONE) as whole,
    ):
        for session in (layers, whole):
            filled(session, 70, 33) if ON_GPU else filled(session, 70)
            session.run(1)
        machinery = whole._machinery
        if not ON_GPU:
            machinery._replays = Eager(machinery._captured_pieces)
        for session in (layers, whole):
            session.run(STEPS)
        if not ON_GPU:
            lists = machinery.tiers.lists
            assert lists is not None
            assert lists.signals[:, 1:3].tolist() == [[1, 16 if more.get("copy_rule") else 2]]
        assert isinstance(machinery._replays, Captured) == ON_GPU
        same_outcome(whole, layers)


@pytest.mark.gpu
@pytest.mark.parametrize("slow", ["copies", "compute", "start"])
@pytest.mark.parametrize(("selector", "runtime"), [("forecast", "offload-prefetch"), ("query", "offload-sync")])
def test_a_slow_lane_changes_nothing(slow: str, selector: str, runtime: str) -> None:
    class Late(Uva):
        def fetch_all(
            self, host: Paged, lists: LayerLists, size: CopySize, *, programs: int, load: bool = False
        ) -> None:
            if slow == "start":  # the gate of the first layer waits for a copy that is not there yet
                for _ in range(20):
                    spin()
            super().fetch_all(host, lists, size, programs=programs, load=load)

    # One thread block of few bytes is slow by itself.
    more: dict[str, Any] = {"copy_ctas": 1, "copy_in_flight_bytes": 1024} if slow == "copies" else {}
    with opened(selector, runtime, {}) as plain, opened(selector, runtime, {}, **more, **ONE) as delayed:
        machinery = delayed._machinery
        machinery.engine = Late()
        if slow == "compute":
            slow_compute(machinery)
        for session in (plain, delayed):
            filled(session, 70, 33)
            session.run(STEPS)
        same_outcome(delayed, plain)


@pytest.mark.gpu
def test_many_layers_and_buckets_share_one_set_of_signals() -> None:
    def tokens(**more: Any) -> dict[int, int]:
        with opened("forecast", "offload-prefetch", {}, places=4, shape=DEEP, **more) as session:
            for length in (70, 33, 50):
                filled(session, length)
                session.run(20, dict.fromkeys(session.rows, 3))
            return session.tokens()

    assert tokens() == tokens(**ONE)


@pytest.mark.parametrize(("selector", "runtime"), PAIRS)
def test_one_copy_is_issued_and_each_layer_is_awaited_before_it_attends(selector: str, runtime: str) -> None:
    clocks, plan = Clocks(), plan_of(selector, runtime)
    ran: list[str] = []

    def issue(op: Op) -> None:
        ran.append(op.name)
        clocks.issue(op)

    def gate(op: Op) -> None:
        ran.append(f"gate {op.name}")

    table = dict.fromkeys({op.kind for op in plan}, issue)
    (piece,) = pieces_of(plan, table, clocks, host_lists=False, gate=gate)
    piece.issue()
    copies = [op.name for op in plan.lane(Lane.H2D)]
    assert [name for name in ran if name in copies] == copies[:1]
    for name in copies:
        layer = name.split("/")[1]
        diff, gated = ran.index(f"diff/{layer}"), ran.index(f"gate {name}")
        assert diff < gated
        assert ran[gated + 1] == f"attend/{layer}"
    # All operations but the other copies, in the plan's order; and the end of the step is the end of the copy.
    assert [name for name in ran if not name.startswith("gate")] == [
        op.name for op in plan if op.name not in copies[1:]
    ]
    ((_, _, known, _),) = [entry for entry in clocks.ran if entry[1].kind == Kind.FETCH]
    before = [op.name for op in plan.lane(Lane.COMPUTE)][: known[Lane.COMPUTE]]
    assert before[-1] == plan.lane(Lane.H2D)[0].after[0]
    assert clocks.now[Lane.COMPUTE][Lane.H2D] == 1


def test_a_copy_for_all_layers_is_refused_where_the_engine_cannot() -> None:
    with pytest.raises(ConfigError, match=r"copy_launch='step'.*engine='copy-engine'"):
        opened("forecast", "offload-prefetch", {"engine": "copy-engine"}, **ONE)
    with opened("forecast", "offload-prefetch", {}, **ONE) as session:
        assert session.describe()["copy"].endswith("one launch a step") == ON_GPU
    with opened("window", "resident", {}, **ONE) as session:
        assert session._machinery.tiers.lists is None
