"""Lanes of a CPU made late, reordered and killed at random: no answer changes, and nobody waits for ever."""

from __future__ import annotations

import functools
import queue
import random
import time
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from sparda_core.errors import LaneError
from sparda_core.plan import Kind, Op
from sparda_core.runtimes import copy_lane, prefill_chunk
from sparda_core.runtimes.copy_lane import CopyJob
from sparda_core.runtimes.executor import Executor
from sparda_core.runtimes.link import LinkSchedule
from sparda_core.runtimes.session import CpuSession
from tests.agreement.worlds import TOKENS, pair
from tests.chaos.story import ACTS, PAIRS, Answer, State, opened, plainly, retold, told
from tests.profiles import NIGHTLY
from tests.storage.test_copy_lane import Clock

OFFLOADED = [pair for pair in PAIRS if pair[1] != "resident"]
#: Longest delay. A step of the tests' model takes some milliseconds in all.
LATE_S = 2e-3
SEEDS = 40 if NIGHTLY else 2


def doze(draw: random.Random, share: float = 0.3) -> None:
    if draw.random() < share:
        time.sleep(draw.uniform(0, LATE_S))


def late_copies(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
    """The worker sleeps before and after some pieces, which are single blocks."""
    run = CopyJob.run

    def late(job: CopyJob, start: int, stop: int) -> None:
        doze(draw)
        run(job, start, stop)
        doze(draw)

    monkeypatch.setattr(CopyJob, "run", late)
    monkeypatch.setattr(copy_lane, "_PIECE_BYTES", 1)


def late_compute(session: CpuSession, draw: random.Random) -> None:
    """The calling thread sleeps before some operations."""

    def behind(run: Callable[[Op, Any], Any]) -> Callable[[Op, Any], Any]:
        def late(op: Op, state: Any) -> Any:
            doze(draw, 0.1)
            return run(op, state)

        return late

    executors: list[Executor[Any]] = [session._executor, *map(session._prefill_executor, ("dense", "selector"))]
    for executor in executors:
        for step in executor._steps:
            object.__setattr__(step, "run", behind(step.run))


def same(got: tuple[list[Answer], list[State]], want: tuple[list[Answer], list[State]]) -> bool:
    return got[1] == want[1] and all(
        a is b or (a is not None and b is not None and np.array_equal(a.numpy(), b.numpy()))
        for a, b in zip(got[0], want[0], strict=True)
    )


@pytest.mark.parametrize("late", ["copies", "compute"])
@pytest.mark.parametrize(("selector", "runtime", "options"), OFFLOADED)
def test_a_lane_that_is_late_at_random_changes_no_answer(
    selector: str, runtime: str, options: dict[str, Any], late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = plainly(selector, runtime, options)
    for seed in range(SEEDS):
        draw = random.Random(seed)  # noqa: S311  a test's
        with opened(selector, runtime, options) as session, monkeypatch.context() as patch:
            late_copies(patch, draw) if late == "copies" else late_compute(session, draw)
            assert same(told(session), want), f"seed {seed}"


class _Shuffled(queue.SimpleQueue):  # type: ignore[type-arg]  # generic for mypy only
    """Jobs that wait together come out in any order; what ends the lane comes last."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self.overtaken = draw, 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002  its signature
        time.sleep(3e-3)  # so that there is something to overtake
        waiting = [super().get(block, timeout)]
        while not self.empty():
            waiting.append(super().get())
        taken = self._draw.randrange(len(waiting))
        if waiting[taken] is None:
            taken = 0
        self.overtaken += taken > 0
        for job in waiting[:taken] + waiting[taken + 1 :]:
            self.put(job)
        return waiting[taken]


@pytest.mark.parametrize(("selector", "runtime", "options"), OFFLOADED[:2])
def test_blocks_and_jobs_may_be_copied_in_any_order_as_no_two_have_one_target(
    selector: str, runtime: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the contract of the lane leaves open to whoever waits for each copy by its ticket."""
    want = plainly(selector, runtime, options)
    made = copy_lane.CopyJob
    queues: list[_Shuffled] = []
    overtaken: list[_Shuffled] = []

    def shuffled(draw: random.Random, **given: Any) -> CopyJob:
        order = draw.sample(range(given["source_ids"].size), given["source_ids"].size)
        return made(**given | {name: given[name][order] for name in ("source_ids", "target_ids")})

    for seed in range(SEEDS):
        draw = random.Random(seed)  # noqa: S311  a test's
        with monkeypatch.context() as patch:
            patch.setattr("sparda_core.runtimes.decode_step.CopyJob", functools.partial(shuffled, draw))
            patch.setattr(prefill_chunk, "CopyJob", functools.partial(shuffled, draw))
            queues.append(_Shuffled(draw))
            patch.setattr(queue, "SimpleQueue", queues.pop)
            with opened(selector, runtime, options) as session:
                overtaken.append(session._lane._worker.jobs)  # type: ignore[union-attr,arg-type]
                assert same(told(session), want), f"seed {seed}"
    assert sum(jobs.overtaken for jobs in overtaken), "nothing was overtaken"


def test_attention_that_does_not_wait_for_its_copy_gives_another_answer_when_the_lane_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The companion: delays like those above do show a wait that is not there."""
    want = plainly(*PAIRS[0])
    with opened(*PAIRS[0]) as session, monkeypatch.context() as patch:
        for step in session._executor._steps:
            if step.op.kind == Kind.ATTEND:
                object.__setattr__(step, "waits", ())
        run = CopyJob.run

        def late(job: CopyJob, start: int, stop: int) -> None:
            time.sleep(5 * LATE_S)
            run(job, start, stop)

        patch.setattr(CopyJob, "run", late)
        assert not same(told(session), want)
        time.sleep(0.2)  # nothing may write any more when the session goes


@pytest.mark.parametrize(("selector", "runtime", "options"), OFFLOADED)
def test_a_thread_killed_at_any_copy_costs_the_call_that_waited_and_no_later_one(
    selector: str, runtime: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = plainly(selector, runtime, options)
    for seed in range(SEEDS):
        draw, run = random.Random(seed), CopyJob.run  # noqa: S311  a test's
        left = {"copies": -1}

        def dies(job: CopyJob, start: int, stop: int, *, left: dict[str, int] = left, run: Any = run) -> None:
            left["copies"] -= 1
            if left["copies"] == 0:
                raise SystemExit("killed")
            run(job, start, stop)

        def armed(*, left: dict[str, int] = left, draw: random.Random = draw) -> Any:
            left["copies"] = draw.randint(1, 4)
            return _Disarmed(left)

        with monkeypatch.context() as patch, opened(selector, runtime, options) as session:
            patch.setattr(CopyJob, "run", dies)
            assert retold(session, dict.fromkeys(ACTS, armed), (LaneError,), want) > 2


@attrs.define
class _Disarmed:
    """Nobody is killed once the act is over."""

    left: dict[str, int]

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, *_: object) -> None:
        self.left["copies"] = -1


def test_nothing_is_written_any_more_once_a_call_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing a step empties slots; a copy that came later would fill them with what belongs to another block."""
    begun, ended = list[int](), list[int]()
    with opened(*PAIRS[0]) as session, monkeypatch.context() as patch:
        told(session)
        run = CopyJob.run

        def late(job: CopyJob, start: int, stop: int) -> None:
            begun.append(start)
            time.sleep(5 * LATE_S)
            run(job, start, stop)
            ended.append(start)

        def cut(op: Op, state: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(CopyJob, "run", late)
        patch.setattr(copy_lane, "_PIECE_BYTES", 1)
        session.decode(dict.fromkeys(session.rows, 3))  # its misses come: the next step has some, too
        # The executor waits before it raises; that the session then drains its lane must not hide whether it did.
        patch.setattr(session._lane, "drain", lambda: None)
        (attend,) = (step for step in session._executor._steps if step.op.name == "attend/1")
        patch.setattr(type(attend), "__setattr__", object.__setattr__)
        patch.setattr(attend, "run", cut)
        for token in range(2, 20):
            begun.clear()
            ended.clear()
            with pytest.raises(KeyboardInterrupt):
                session.decode(dict.fromkeys(session.rows, token))
            assert begun == ended, "a copy was still under way"


@pytest.mark.parametrize("link_bytes_per_s", [1e9, None])
def test_blocks_that_a_link_has_not_brought_are_late_and_no_others(link_bytes_per_s: float | None) -> None:
    """On a clock that stands still but where somebody sleeps, a link brings nothing before it is waited for; without
    a limit, everything is there once the thread has copied it.
    """
    clock = Clock()
    combination = pair("forecast", "offload-prefetch", threads=1, link_bytes_per_s=link_bytes_per_s)
    with combination.open_cpu() as session:
        session.prefill(session.add(), TOKENS[:70])
        assert session._lane is not None
        worker, waited = session._lane._worker, session._decode._waited
        worker.clock_ns, worker.sleep_s = clock.read, clock.sleep
        worker.link = LinkSchedule(link_bytes_per_s)

        def patiently(op: Op, ticket: Any, state: Any) -> None:
            ticket.settle()
            waited(op, ticket, state)

        session._executor._waited = patiently
        met = [session.decode({0: token}).facts for token in (3, 1, 4)]
    misses, late = (sum(getattr(facts, name).sum() for facts in met) for name in ("misses", "late"))
    assert misses > 0
    assert late == (misses if link_bytes_per_s is not None else 0)
