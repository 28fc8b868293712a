from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, LaneError
from sparda_core.runtimes.copy_lane import _PIECE_BYTES, CopyJob, CopyLane, CopyTicket
from sparda_core.runtimes.link import LinkSchedule

BLOCK, DIM = 4, 2
BLOCK_BYTES = 2 * BLOCK * DIM * 8
NS = 1_000_000_000


class Clock:
    """Time that passes only where somebody sleeps, or says so."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def read(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += max(1, round(seconds * NS))


@attrs.define
class Step:
    """A job of whole pieces that calls `body(start, stop)`."""

    body: Callable[[int, int], object]
    units: int = 1
    unit_bytes: int = _PIECE_BYTES

    def run(self, start: int, stop: int) -> None:
        self.body(start, stop)


def nothing(start: int, stop: int) -> None:
    assert start < stop


@pytest.fixture
def lane() -> Iterator[CopyLane]:
    with CopyLane() as lane:
        yield lane


def blocks(count: int, fill: float = np.nan) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.full((count, 2, BLOCK, DIM), fill)


def copy_job(source_ids: list[int], target_ids: list[int], source_blocks: int = 9, target_blocks: int = 7) -> CopyJob:
    source = np.arange(source_blocks * 2 * BLOCK * DIM, dtype=np.float64).reshape(-1, 2, BLOCK, DIM)
    return CopyJob(
        source=source, target=blocks(target_blocks), source_ids=np.array(source_ids, np.int64),
        target_ids=np.array(target_ids, np.int64),
    )  # fmt: skip


def test_the_lane_moves_the_blocks_listed_and_touches_no_other(lane: CopyLane) -> None:
    job = copy_job([8, 0, 8], [1, 6, 3])
    ticket = lane.submit(job)
    ticket.wait()
    np.testing.assert_array_equal(job.target[[1, 6, 3]], job.source[[8, 0, 8]])
    assert np.isnan(job.target[[0, 2, 4, 5]]).all()
    assert ticket.done()
    assert (ticket.moved, ticket.units) == (3, 3)
    assert ticket.submitted_ns <= ticket.start_ns <= ticket.end_ns


def test_a_job_of_many_pieces_arrives_whole_in_order(lane: CopyLane) -> None:
    seen: list[tuple[int, int]] = []
    unit = _PIECE_BYTES // 3
    ticket = lane.submit(Step(lambda start, stop: seen.append((start, stop)), units=8, unit_bytes=unit))
    ticket.wait()
    assert seen == [(0, 3), (3, 6), (6, 8)]
    assert ticket.moved == 8


def test_a_unit_larger_than_a_piece_moves_alone(lane: CopyLane) -> None:
    seen: list[tuple[int, int]] = []
    lane.submit(Step(lambda start, stop: seen.append((start, stop)), units=2, unit_bytes=3 * _PIECE_BYTES)).wait()
    assert seen == [(0, 1), (1, 2)]


def test_a_lane_and_its_tickets_do_not_keep_a_tier_alive(lane: CopyLane) -> None:
    job = copy_job([1], [0])
    source = weakref.ref(job.source)
    ticket = lane.submit(job)
    ticket.wait()
    lane.submit(Step(nothing)).wait()
    del job
    gc.collect()
    assert source() is None
    assert ticket.moved == 1


def test_jobs_run_in_the_order_submitted_and_drain_waits_for_all(lane: CopyLane) -> None:
    seen: list[int] = []
    tickets = [lane.submit(Step(lambda *_, i=i: seen.append(i))) for i in range(20)]
    lane.drain()
    assert seen == list(range(20))
    assert all(ticket.done() for ticket in tickets)


def test_a_job_without_units_is_done_at_once(lane: CopyLane) -> None:
    ticket = lane.submit(copy_job([], []))
    assert ticket.done()
    assert ticket.moved == 0
    assert ticket.start_ns == ticket.end_ns > 0
    ticket.wait()


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(0, 10**7)), min_size=1, max_size=8
    ),
    rate=st.sampled_from([1e6, 3e8, 5.5e10]),
)
def test_a_link_is_serial_loses_no_time_to_late_wake_ups_and_never_beats_its_speed(
    jobs: list[tuple[int, int, int]], rate: float
) -> None:
    """jobs: nanoseconds between submissions, bytes, and how late the lane wakes up."""
    link, submitted, now, free = LinkSchedule(rate), 0, 0, 0.0
    for gap, size, late in jobs:
        submitted += gap
        now = max(now, submitted)
        start = link.begin(submitted_ns=submitted, now_ns=now)
        assert start >= submitted
        end = link.arrival(size, now_ns=start)
        free = max(free, submitted) + size / rate * NS
        assert end == pytest.approx(free, abs=2 * len(jobs))
        now = end + late


def test_a_copy_slower_than_the_link_sets_the_pace_and_earns_no_credit() -> None:
    link = LinkSchedule(1e9)
    assert link.begin(submitted_ns=0, now_ns=0) == 0
    assert link.arrival(1000, now_ns=5000) == 5000
    assert link.begin(submitted_ns=10, now_ns=5000) == 5000
    assert link.arrival(1000, now_ns=5100) == 6000


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_speed_that_moves_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="link_bytes_per_s="):
        CopyLane(link_bytes_per_s=rate)


def test_a_lane_on_a_link_takes_exactly_bytes_over_speed() -> None:
    clock, gate = Clock(), threading.Event()
    with CopyLane(link_bytes_per_s=1e6, clock_ns=clock.read, sleep_s=clock.sleep) as lane:
        first = lane.submit(Step(lambda *_: gate.wait()))
        rest = [lane.submit(Step(nothing, units=3)) for _ in range(2)]
        gate.set()
        lane.drain()
    took = _PIECE_BYTES / 1e6 * NS
    assert (first.start_ns, first.end_ns) == (1000, 1000 + took)
    assert (rest[0].start_ns, rest[0].end_ns) == (1000 + took, 1000 + 4 * took)
    assert (rest[1].start_ns, rest[1].end_ns) == (1000 + 4 * took, 1000 + 7 * took)


def test_blocks_in_flight_on_a_link_count_as_moved_when_the_link_would_have_brought_them() -> None:
    clock, job = Clock(), copy_job([0, 1, 2, 3], [0, 1, 2, 3])
    with CopyLane(link_bytes_per_s=float(BLOCK_BYTES), clock_ns=clock.read, sleep_s=clock.sleep) as lane:
        ticket = lane.submit(job)
        ticket.settle()
        assert (ticket.moved, ticket.done()) == (0, False)
        clock.now_ns += 3 * NS + 1
        assert (ticket.moved, ticket.done()) == (3, False)
        ticket.wait()
    assert clock.now_ns == ticket.end_ns
    assert (ticket.moved, ticket.done()) == (4, True)
    assert ticket.end_ns - ticket.start_ns == 4 * NS


def test_who_waits_for_a_link_sleeps_and_the_lane_does_not() -> None:
    clock, sleepers = Clock(), set[int]()

    def sleep(seconds: float) -> None:
        sleepers.add(threading.get_ident())
        clock.sleep(seconds)

    with CopyLane(link_bytes_per_s=1e6, clock_ns=clock.read, sleep_s=sleep) as lane:
        tickets = [lane.submit(Step(nothing, units=2)) for _ in range(3)]
        lane.drain()
        assert not sleepers
        tickets[-1].wait()
    assert sleepers == {threading.get_ident()}
    assert all(ticket.done() for ticket in tickets)


def test_a_lane_without_a_limit_never_sleeps() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    with CopyLane(sleep_s=sleep) as lane:
        lane.submit(Step(nothing, units=5)).wait()


def test_a_copy_that_fails_is_raised_where_somebody_waits_and_the_lane_goes_on(lane: CopyLane) -> None:
    def fail(start: int, stop: int) -> None:
        if stop == 2:
            raise ValueError("broken block")

    failed = lane.submit(Step(fail, units=3))
    good = lane.submit(copy_job([1], [0]))
    good.wait()
    failed.settle()
    with pytest.raises(LaneError, match="after 1 of 3 blocks: broken block") as raised:
        failed.wait()
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_thread_that_is_killed_ends_every_ticket_with_an_error() -> None:
    queued = threading.Event()

    def die(*_: int) -> None:
        queued.wait()
        raise SystemExit("killed")

    lane = CopyLane()
    killed, waiting = lane.submit(Step(die)), lane.submit(Step(nothing))
    queued.set()
    with pytest.raises(LaneError, match="killed"):
        killed.wait()
    with pytest.raises(LaneError, match="thread died"):
        waiting.wait()
    lane._thread.join()
    with pytest.raises(LaneError, match="broken"):
        lane.submit(Step(nothing))
    lane.close()


def test_nobody_waits_for_ever_in_a_copy_of_the_process_which_has_no_thread_of_the_lane(
    lane: CopyLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = CopyTicket(Step(nothing), lane._worker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as after os.fork, for whoever asks
        ticket.settle()
        with pytest.raises(LaneError, match="thread has died"):
            ticket.wait()
        with pytest.raises(LaneError, match="broken"):
            lane.submit(Step(nothing))


def test_a_lane_that_gets_no_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(LaneError, match="no thread: can't start"):
        CopyLane()


def test_draining_waits_for_a_job_whose_ticket_was_lost(lane: CopyLane) -> None:
    go, seen = threading.Event(), list[int]()

    def late(start: int, _: int) -> None:
        go.wait()
        seen.append(start)

    lane.submit(Step(late, units=2))
    threading.Timer(0.05, go.set).start()
    lane.drain()
    assert seen == [0, 1]


def test_closing_in_the_middle_stops_at_the_next_piece_and_ends_what_is_queued() -> None:
    lane, started, go = CopyLane(), threading.Event(), threading.Event()

    def work(*_: int) -> None:
        started.set()
        go.wait()

    running, queued = lane.submit(Step(work, units=1000)), lane.submit(Step(nothing))
    started.wait()
    closing = threading.Thread(target=lane.close)
    closing.start()
    while not lane._worker.stopping:
        pass
    go.set()
    closing.join()
    for ticket in (running, queued):
        with pytest.raises(LaneError, match="closed"):
            ticket.wait()
    assert (running.moved, queued.moved) == (1, 0)
    with pytest.raises(LaneError, match="closed"):
        lane.submit(Step(nothing))
    lane.close()


def test_closing_does_not_wait_for_a_slow_link() -> None:
    lane = CopyLane(link_bytes_per_s=1.0)
    ticket = lane.submit(Step(nothing))
    ticket.settle()
    lane.close()
    assert not ticket.done()


def test_a_lane_that_nobody_closed_ends_its_thread_when_it_is_forgotten() -> None:
    lane = CopyLane()
    thread = lane._thread
    del lane
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("name", "source_ids", "target_ids"),
    [("source_ids", [9], [0]), ("source_ids", [-1], [0]), ("target_ids", [0], [7]), ("target_ids", [0, 1], [0])],
)
def test_lists_that_would_write_outside_are_refused_before_they_reach_the_lane(
    name: str, source_ids: list[int], target_ids: list[int]
) -> None:
    with pytest.raises(ConfigError, match=name):
        copy_job(source_ids, target_ids)


def test_tiers_of_different_blocks_or_dtypes_are_refused() -> None:
    ids = np.zeros(1, np.int64)
    for target in (blocks(3).astype(np.float32), blocks(3)[:, :, :2]):
        with pytest.raises(ConfigError, match="one shape and dtype"):
            CopyJob(source=blocks(3), target=target, source_ids=ids, target_ids=ids)


def test_a_lane_at_work_never_loads_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from sparda_core.runtimes.copy_lane import CopyJob, CopyLane\n"
        "ids = np.zeros(1, np.int64)\n"
        "array = np.zeros((1, 2, 4, 2), np.float32)\n"
        "with CopyLane() as lane:\n"
        "    lane.submit(CopyJob(source=array, target=array.copy(), source_ids=ids, target_ids=ids)).wait()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
