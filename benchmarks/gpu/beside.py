"""What a long copy costs decode GEMMs beside it, and how fast it is while they run all the time.

The products of 8 layers are one graph, replayed again and again, an event between replays. The copy begins on a
stream of its own when a replay has ended, and ends while replays still run. Its speed is its bytes over the time
between its own events (so waiting for a free multiprocessor counts); the slowdown is the median time of replays
that lie wholly within that time, over the median of replays without a copy, taken in turn.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import attrs
import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.clock import graph_of

DEVICE = tests.gpu_env.DEVICE
LAYERS = 8


@attrs.frozen
class Gemms:
    """A graph of 8 layers of decode GEMMs of an 8B model in bf16."""

    batch: int
    graph: torch.cuda.CUDAGraph

    @classmethod
    def of(cls, batch: int) -> Gemms:
        """For a batch: 4096-4096 twice, 4096-16384 twice, 16384-4096, weights of their own in each layer."""
        shapes = [(4096, 4096), (4096, 4096), (16384, 4096), (16384, 4096), (4096, 16384)]
        x = {width: torch.randn(batch, width, device=DEVICE).bfloat16() for width in (4096, 16384)}
        weights = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(LAYERS) for shape in shapes]
        outs = {width: torch.empty_like(x[width]) for width in x}

        def product(weight: torch.Tensor) -> None:
            torch.mm(x[weight.shape[1]], weight.T, out=outs[weight.shape[0]])

        return cls(batch, graph_of([lambda w=weight: product(w) for weight in weights]))  # type: ignore[misc]

    def replays(self, count: int) -> list[torch.cuda.Event]:
        """Enqueue `count` replays; events around them, one more than replays."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self.graph.replay()
            mark.record()
        return marks


@attrs.frozen(kw_only=True)
class Beside:
    """Medians over repetitions."""

    slowdown: float
    gb_per_s: float
    alone_us_per_layer: float


def beside(gemms: Gemms, copy: Callable[[], Callable[[], None]], nbytes: int, rate: float, repeats: int = 5) -> Beside:
    """Copies of `nbytes` beside products; `copy` prepares a fresh one, `rate` is about its GB/s."""
    _alone(gemms)
    enough = 4 + 2 * int(nbytes / rate / 1e3 / _alone(gemms))
    pairs: list[tuple[float, float, float]] = []
    for _ in range(3 * repeats):
        alone, (contended, took, outlasted) = _alone(gemms), _contended(gemms, copy(), enough)
        enough *= 2 if outlasted else 1
        # A host that was busy elsewhere may have enqueued replays when the copy had ended: no measure.
        if contended and not outlasted:
            pairs.append((alone, statistics.median(contended), took))
        if len(pairs) == repeats:
            break
    if not pairs:
        return Beside(slowdown=math.nan, gb_per_s=math.nan, alone_us_per_layer=_alone(gemms) / LAYERS)
    return Beside(
        slowdown=statistics.median(contended / alone for alone, contended, _ in pairs),
        gb_per_s=nbytes / statistics.median(took for _, _, took in pairs) / 1e3,
        alone_us_per_layer=statistics.median(alone for alone, _, _ in pairs) / LAYERS,
    )


def _alone(gemms: Gemms) -> float:
    """Microseconds of a replay with nothing beside it."""
    torch.cuda.synchronize()
    marks = gemms.replays(5)
    torch.cuda.synchronize()
    return statistics.median(_between(marks)[1:])


def _contended(gemms: Gemms, copy: Callable[[], None], replays: int) -> tuple[list[float], float, bool]:
    """Microseconds of the replays wholly beside the copy, and of the copy; whether it ran longer than all replays."""
    lane = torch.cuda.Stream(priority=-1)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    lane.wait_event(gemms.replays(1)[-1])
    begin.record(lane)
    with torch.cuda.stream(lane):
        copy()
    end.record(lane)
    marks = gemms.replays(replays)
    torch.cuda.synchronize()
    times, took = [begin.elapsed_time(mark) for mark in marks], begin.elapsed_time(end)
    within = [(until - at) * 1e3 for at, until in itertools.pairwise(times) if at >= 0 and until <= took]
    return within, took * 1e3, times[-1] < took


def _between(marks: list[torch.cuda.Event]) -> list[float]:
    """Microseconds between events in a row."""
    return [at.elapsed_time(until) * 1e3 for at, until in itertools.pairwise(marks)]
