"""Measures what a CPU profile is fitted from: operations of real decode steps, alone and beside a busy copy lane.

Some seconds of decoding: every selector with its blocks resident, once with the copy lane idle and once
with it moving other blocks all the time; and two selectors offloaded, one that misses much and one that
misses little, which give the operations of residency and the transfers.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import attrs
import numpy as np

from sparda_core.bench.provenance import machine
from sparda_core.compose import Combination, compose
from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.registry import SELECTORS
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec
from sparda_core.spans import Timeline
from sparda_core.work import WorkContext

if TYPE_CHECKING:
    from sparda_core.runtimes.copy_lane import CopyTicket
    from sparda_core.runtimes.snapshot import RowSnapshot
    from sparda_core.simulator.cpu import CpuProfile, KindCost
    from sparda_core.simulator.cpu_samples import CpuSamples

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]

#: Bytes of one background job: far more than any cache holds.
_JOB_BYTES = 64 * 2**20
#: From this share of its time on, a transfer counts as beside compute from end to end.
_ALL = 0.9


@attrs.frozen(kw_only=True)
class Calibration:
    """What to measure.

    selectors  declarations of those whose operations are wanted
    contexts   tokens in the cache when the measured steps begin, ascending
    steps      measured steps at each context
    warmup     steps before them
    """

    selectors: tuple[Selector, ...]
    contexts: tuple[int, ...] = (1024, 3072)
    spec: BlockSpec = attrs.field(factory=BlockSpec)
    steps: int = 6
    warmup: int = 2

    def __attrs_post_init__(self) -> None:
        if not self.selectors or not self.contexts:
            raise ConfigError("calibration needs at least one selector and one context")
        if min(self.contexts) < 1 or list(self.contexts) != sorted(set(self.contexts)):
            raise ConfigError(f"contexts={list(self.contexts)} must be ascending and >= 1")
        if self.steps < 1 or self.warmup < 0:
            raise ConfigError(f"steps={self.steps} must be >= 1 and warmup={self.warmup} >= 0")

    @property
    def tokens(self) -> int:
        """Tokens of text that it takes."""
        return self.contexts[-1] + self.warmup + self.steps


def calibrate_cpu(
    model: Any, tokens: Sequence[int], calibration: Calibration, *, threads: int | None = None,
    snapshot: RowSnapshot | None = None, report: Report | None = None,
) -> CpuProfile:  # fmt: skip
    """Measure this machine and fit its profile.

    model     a decoder on a CPU
    tokens    ids of a text, at least calibration.tokens
    snapshot  of a row that has read them (at least up to the last context); None: read here
    raises    ConfigError for too short a text, ProfileError where the samples give no profile
    """
    found = sample_cpu(model, tokens, calibration, threads=threads, snapshot=snapshot, report=report)
    return profile_of(found, threads=threads)


def sample_cpu(
    model: Any, tokens: Sequence[int], calibration: Calibration, *, threads: int | None = None,
    snapshot: RowSnapshot | None = None, report: Report | None = None,
) -> CpuSamples:  # fmt: skip
    """What `calibrate_cpu` measures, not fitted yet: samples of several passes may be added up."""
    if len(tokens) < calibration.tokens:
        raise ConfigError(f"text gives {len(tokens)} tokens, but calibration needs {calibration.tokens}")
    say = report or (lambda what, done, total: None)
    start = snapshot or _read(model, tokens, calibration, threads, say)
    return _Loop(model, tokens, calibration, threads, start).run(say)


def profile_of(found: CpuSamples, *, threads: int | None = None) -> CpuProfile:
    """The profile of this machine by these samples; raises ProfileError where they give none."""
    from sparda_core.simulator.cpu_fit import fit_cpu_profile

    told = {**machine(), "python": platform.python_version(), "threads": threads or "default"}
    between_s = statistics.median(found.between_s) if found.between_s else 0.0
    profile = fit_cpu_profile(
        found.alone, found.beside, told, dispatch_s=found.gaps_s, between_steps_s=between_s
    )  # fmt: skip
    return attrs.evolve(profile, costs={**_stand_ins(profile.costs), **profile.costs})


def _stand_ins(costs: Mapping[str, KindCost]) -> dict[str, KindCost]:
    """`replay` plays only recorded positions, so it cannot be measured here: like `window` it writes a list."""
    listed = costs.get("decode/window:select")
    return {} if listed is None else {"decode/replay:select": listed}


def _read(
    model: Any, tokens: Sequence[int], calibration: Calibration, threads: int | None, report: Report
) -> RowSnapshot:
    length = calibration.contexts[-1]
    queries = max(int(getattr(selector, "calibration_tokens", 0) or 0) for selector in calibration.selectors)
    reader = compose(model, "window", "resident", spec=calibration.spec, threads=threads, keep_queries=queries)
    with reader.open() as session:
        row = session.add()
        what = "calibration: reading, tokens"
        session.prefill(row, tokens[:length], progress=lambda done: report(what, done, length))
        return session.snapshot(row)


class _Loop:
    """Goes through selectors, runtimes and contexts, and collects samples."""

    def __init__(
        self, model: Any, tokens: Sequence[int], calibration: Calibration, threads: int | None, start: RowSnapshot
    ) -> None:
        from sparda_core.simulator.cpu_samples import CpuSamples

        self._model, self._tokens, self._of, self._threads, self._start = model, tokens, calibration, threads, start
        self._found = CpuSamples()

    def run(self, report: Report) -> CpuSamples:
        """Everything measured."""
        runs = [(selector, "resident") for selector in self._of.selectors]
        runs += [(s, runtime) for s in self._movers() for runtime in ("offload-sync", "offload-prefetch")]
        for done, (selector, runtime) in enumerate(runs):
            report("calibration: measuring, runs", done, len(runs))
            self._measure(selector, runtime)
        report("calibration: measuring, runs", len(runs), len(runs))
        return self._found

    def _movers(self) -> list[Selector]:
        """Selectors whose misses are moved: a draw misses much, the first that looks ahead little."""
        ahead = next((selector for selector in self._of.selectors if selector.lead), None)
        return [SELECTORS.make("random"), *([ahead] if ahead else [])]

    def _measure(self, selector: Selector, runtime: str) -> None:
        pair = compose(self._model, selector, runtime, spec=self._spec(selector), threads=self._threads)
        with pair.open(timeline=True) as session:
            for context in self._of.contexts:
                self._steps(pair, session, context, other=None)
                if runtime == "resident":
                    with BusyLane(pair) as other:
                        self._steps(pair, session, context, other=other)

    def _spec(self, selector: Selector) -> BlockSpec:
        """Dense attends to every block; all others keep the budget."""
        spec = self._of.spec
        if selector.name != "dense":
            return spec
        return spec.with_budget(max(spec.block_count(self._of.tokens), spec.budget))

    def _steps(self, pair: Combination, session: Any, context: int, *, other: BusyLane | None) -> None:
        row = session.adopt(self._start)
        session.crop(row, context)
        tokens = self._tokens[context : context + self._of.warmup + self._of.steps]
        for at, token in enumerate(tokens):
            if other is not None:
                other.fill()
            began_ns = time.perf_counter_ns()
            result = session.decode({row: token})
            took_ns = time.perf_counter_ns() - began_ns
            if at < self._of.warmup or (other is not None and not other.busy()):
                continue
            found = step_samples(pair, result.timeline, result.facts, beside=other is not None)
            if other is None:
                outside_s = max(0, took_ns - result.timeline.duration_ns) / 1e9
                found = attrs.evolve(found, between_s=(outside_s,))
            self._found += found
        session.retire(row)


def step_samples(pair: Combination, timeline: Timeline, facts: StepFacts, *, beside: bool) -> CpuSamples:
    """Samples of one measured step; `beside` says that a lane outside the timeline was busy all the time.

    Of the step's own overlaps only transfers are taken that ran beside compute from end to end: what
    overlapped in part would have to be split by a guess, and compute has the busy lane for that.
    """
    from sparda_core.simulator.cpu_samples import CpuSamples, samples_of
    from sparda_core.simulator.predict import kernel_work

    plan = pair.plan()
    found = samples_of(timeline, plan, facts, kernel_work(plan, work_context(pair), pair.selector))
    if beside:
        every = (*found.alone, *found.beside)
        return CpuSamples(beside=tuple(attrs.evolve(sample, busy=1.0) for sample in every))
    moved = (sample for sample in found.beside if sample.work.h2d_bytes and sample.busy >= _ALL)
    return attrs.evolve(found, beside=tuple(attrs.evolve(sample, busy=1.0) for sample in moved))


def work_context(pair: Combination) -> WorkContext:
    """What the work of a combination on this CPU depends on: every value has the model's own size."""
    size = float(pair.model.dtype.itemsize)
    return WorkContext(
        shape=pair.shape, spec=pair.spec, weight_bytes=size, kv_bytes=size, host_kv_bytes=size, entry_bytes=size,
        activation_bytes=size, forecast=pair.model.has_forecast, forecast_lead=pair.model.forecast_lead or 1,
    )  # fmt: skip


class BusyLane:
    """A copy lane that is never idle between `fill` and the next look, moving blocks that nobody reads."""

    def __init__(self, pair: Combination) -> None:
        from sparda_core.runtimes.copy_lane import CopyJob, CopyLane

        block = (2, pair.spec.block, pair.shape.head_dim)
        dtype = np.dtype(str(pair.model.dtype).removeprefix("torch."))
        count = max(1, _JOB_BYTES // (int(np.prod(block)) * dtype.itemsize))
        ids = np.random.default_rng(0).permutation(count)
        self._job = CopyJob(
            source=np.ones((count, *block), dtype), target=np.ones((count, *block), dtype),
            source_ids=ids.astype(np.int64), target_ids=np.arange(count, dtype=np.int64),
        )  # fmt: skip
        self._lane = CopyLane()
        self._jobs = 4
        self._queue: list[CopyTicket] = []

    def fill(self) -> None:
        """Queue enough jobs for a step."""
        self._queue = [ticket for ticket in self._queue if not ticket.done()]
        self._queue += [self._lane.submit(self._job) for _ in range(self._jobs - len(self._queue))]

    def busy(self) -> bool:
        """Whether the lane has worked ever since `fill`; if not, it gets more to do next time."""
        if not self._queue[-1].done():
            return True
        self._jobs *= 2
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._lane.close()
