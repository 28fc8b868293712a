"""A long graph of kernels, and a logged copy that comes in its midst or is there before it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch

from benchmarks.gpu.logged_lists import BLOCK_KIB, Copies, Few, Row
from sparda_core.bench.gpu_calibration.beside import HOLD, LATER, TIMES, Subject, hold
from sparda_core.bench.gpu_calibration.pool import KIB, device_of
from sparda_core.bench.gpu_calibration.products import Weights
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_calibration.small_kernels import case_of
from sparda_core.bench.gpu_clock import Launch, finish, has_gpu, new_mark, new_stream, on_stream
from sparda_core.kernels.clock.gpu import mark


class Race:
    """A long graph, and something beside it on a stream of higher priority."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self._marks = subject, torch.zeros(2, dtype=torch.int64, device=device_of())
        self._alone = self._took(None)[0]

    def _took(self, other: Launch | None, *, first: bool = False, later: int = LATER) -> tuple[float, float, float]:
        """Microseconds of the graph; from its start to the other one's begin, and to its end."""
        free, start, end, begin, done = (new_mark() for _ in range(5))
        lane = new_stream(priority=-1)
        finish()
        hold(HOLD)
        free.record()

        def graph() -> None:
            mark(self._marks[:1])
            start.record()
            self.subject.graph.replay()
            end.record()
            mark(self._marks[1:])

        if not first:
            graph()
        if other is not None:
            lane.wait_event(free)
            with on_stream(lane):
                if not first:
                    hold(later)
                begin.record(lane)
                other()
                done.record(lane)
        if first:
            hold(later)
            graph()
        finish()
        took = float(start.elapsed_time(end)) * 1e3
        if other is None:
            return took, 0.0, 0.0
        return took, float(start.elapsed_time(begin)) * 1e3, float(start.elapsed_time(done)) * 1e3

    def run(self, launch: Launch, *, first: bool = False, later: int = LATER) -> Row:
        """One replay beside it: slowdown while both ran, and where in the graph that began."""
        before = self._alone
        took, begin, done = self._took(launch, first=first, later=later)
        marks = self._marks.tolist()
        self._alone = self._took(None)[0]
        met = max(1e-6, done - max(0.0, begin))
        behind = took - (before + self._alone) / 2
        ended = done < took or not has_gpu()
        return {
            "slowdown": met / max(met - behind, 1e-3 * met) if ended else None, "begin_us": begin, "done_us": done,
            "graph_ns": marks, "alone_us": self._alone, "later": later,
        }  # fmt: skip


def raced(
    race: Race, copies: Copies, copy: Few, us: float, *, repeats: int, first: bool = False, later: int = LATER,
    range_bytes: int | None = None,
) -> list[Row]:  # fmt: skip
    """Replays of one copy beside the kernels, each with a list of its own."""
    run, renew, log = copies.made(copy, copies.blocks(copy, us), range_bytes=range_bytes)
    run()  # loads the kernel: a launch that loads waits for the device
    rows = []
    for _ in range(repeats):
        renew()
        told = race.run(run, first=first, later=later)
        logged = log.told(every=64)
        moved = copies.blocks(copy, us) * BLOCK_KIB * KIB
        rows.append({**told, **logged, "gb_s": moved / max(1, max(logged["ends"]) - min(logged["starts"]))})
    return rows


@functools.cache
def weights_of(sizes: Sizes) -> Weights:
    """Weights of every class of products, made once."""
    return Weights(sizes)


def beside_kernels(
    sizes: Sizes, copies: Copies, kernels: Sequence[tuple[str, int]], few: Sequence[Few],
    ranges: Sequence[int | None], *, repeats: int = 3,
) -> list[Row]:  # fmt: skip
    """Copies late and first beside a graph of one kernel, over lists of several ranges."""
    rows: list[Row] = []
    for name, tokens in kernels:
        ours = name not in Weights.NAMES
        launches = case_of(name, sizes, tokens).launches if ours else weights_of(sizes).launches(name, tokens)
        race = Race(Subject.of(name, tokens, launches, TIMES * sizes.beside_us / 2))
        for copy, range_bytes, first in itertools.product(few, ranges, (False, True)):
            found = raced(
                race, copies, copy, sizes.beside_us / 2, repeats=repeats, first=first, range_bytes=range_bytes
            )
            told = {"kernel": name, "rows": tokens, "ctas": copy[0], "kib": copy[1], "first": first}
            rows += [{**told, "range_bytes": range_bytes, **row} for row in found]
    return rows
