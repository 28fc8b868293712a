"""Paired step times: several combinations measured in turns on the same tokens, so that noise hits all alike."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.spans import Timeline

if TYPE_CHECKING:
    from sparda_core.compose import Combination
    from sparda_core.runtimes.snapshot import RowSnapshot


#: Share of a resident step that waiting must add before one can say how much of it is hidden: less is noise.
LEAST_EXPOSED = 0.05


@attrs.frozen(kw_only=True, eq=False)
class Start:
    """Where every combination starts: `batch` rows that hold the first `tokens` tokens of a snapshot."""

    snapshot: RowSnapshot
    tokens: int
    batch: int = 1


@attrs.frozen(kw_only=True, eq=False)
class Samples:
    """One combination's counted steps, in order. Seconds.

    rounds     step times of each round
    facts      one a step
    timelines  one a step, where they were recorded
    """

    rounds: tuple[tuple[float, ...], ...]
    facts: tuple[StepFacts, ...]
    timelines: tuple[Timeline, ...] = ()

    @property
    def step_s(self) -> tuple[float, ...]:
        """All step times."""
        return tuple(s for part in self.rounds for s in part)

    @property
    def median_s(self) -> float:
        """Median step time."""
        return statistics.median(self.step_s)

    @property
    def spread_s(self) -> tuple[float, float]:
        """Quartiles of the step time; the sample itself where there is only one."""
        if len(self.step_s) < 2:
            return self.step_s[0], self.step_s[0]
        low, _, high = statistics.quantiles(self.step_s, n=4, method="inclusive")
        return low, high

    @property
    def round_medians_s(self) -> tuple[float, ...]:
        """Median step time of each round."""
        return tuple(statistics.median(part) for part in self.rounds)


@attrs.frozen(kw_only=True)
class Hiding:
    """What prefetching hides of what a synchronous run exposes.

    share   (sync - prefetch) / (sync - resident), of medians; None where there is next to nothing to hide
    rounds  the same for each round, with None likewise: its spread
    """

    share: float | None
    rounds: tuple[float | None, ...]


def measure_in_turns(
    combinations: Mapping[str, Combination], start: Start, feed: Sequence[int], *, warmup: int, rounds: int,
    timeline: bool = False, progress: Callable[[int, int], None] | None = None,
) -> dict[str, Samples]:  # fmt: skip
    """Step times of teacher-forced decoding; in each round every combination runs as many steps.

    feed      token ids, one a step for all rows: `warmup` of them, then the counted ones, whose number
              must be a multiple of `rounds`
    timeline  record spans, which costs a little: quote step times measured without
    progress  called with steps done and steps in all
    """
    counted = len(feed) - warmup
    if counted < 1 or counted % rounds:
        raise ConfigError(f"feed has {len(feed)} tokens: after warmup={warmup} it needs a multiple of rounds={rounds}")
    per_round, every, done = counted // rounds, len(feed) * len(combinations), 0
    results: dict[str, list[list[tuple[float, Any]]]] = {name: [] for name in combinations}
    with contextlib.ExitStack() as stack:
        sessions = {name: stack.enter_context(c.open(timeline=timeline)) for name, c in combinations.items()}
        for session in sessions.values():
            _fill(session, start)
        edges = [0, *range(warmup, len(feed) + 1, per_round)]
        for begin, end in itertools.pairwise(edges):
            for name, session in sessions.items():
                results[name].append([_timed(session, token) for token in feed[begin:end]])
                done += end - begin
                if progress:
                    progress(done, every)
    return {name: _samples(parts[1:]) for name, parts in results.items()}


def hiding(resident: Samples, sync: Samples, prefetch: Samples) -> Hiding:
    """The hidden share of paired samples."""
    by_round = zip(resident.round_medians_s, sync.round_medians_s, prefetch.round_medians_s, strict=True)
    return Hiding(
        share=_share(resident.median_s, sync.median_s, prefetch.median_s),
        rounds=tuple(_share(*medians) for medians in by_round),
    )


def _share(resident_s: float, sync_s: float, prefetch_s: float) -> float | None:
    exposed_s = sync_s - resident_s
    return (sync_s - prefetch_s) / exposed_s if exposed_s >= LEAST_EXPOSED * resident_s else None


def _fill(session: Any, start: Start) -> None:
    row = session.adopt(start.snapshot)
    session.crop(row, start.tokens)
    for _ in range(start.batch - 1):
        session.fork(row)


def _timed(session: Any, token: int) -> tuple[float, Any]:
    rows = session.rows
    began = time.perf_counter()
    result = session.decode(dict.fromkeys(rows, token))
    return time.perf_counter() - began, result


def _samples(rounds: Sequence[Sequence[tuple[float, Any]]]) -> Samples:
    results = [result for part in rounds for _, result in part]
    return Samples(
        rounds=tuple(tuple(took_s for took_s, _ in part) for part in rounds),
        facts=tuple(result.facts for result in results),
        timelines=tuple(result.timeline for result in results if result.timeline is not None),
    )
