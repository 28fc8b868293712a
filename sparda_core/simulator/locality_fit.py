"""Fit of a locality to recorded selections: churn is counted, reuse is a survival curve of stack depths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import RecordingError
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.locality import Fitted, LocalityModel
from sparda_core.simulator.residency import POLICIES
from sparda_core.simulator.streams import Streams
from sparda_core.simulator.trace_facts import Recorded, opened_blocks, recorded_facts

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Depths, in selections, at which the survival curve is written down.
KNOTS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
#: Newcomers that must be known to lie at a depth or beyond, for the curve to be told there.
_LEAST_AT_RISK = 25
#: Multiples of it, modulo 1, fill (0, 1) evenly.
_GOLDEN = (5**0.5 - 1) / 2
#: Tail where the recording tells none, and its bounds elsewhere.
_TAIL, _TAIL_BOUNDS = 1.0, (0.1, 10.0)
#: Slots, in selections, at which a fit is held against its recording.
TIMES = (1, 2, 4)
#: Streams that are drawn for that.
_MOST_STREAMS = 64


class Described(Recorded, Protocol):
    """A recording that says what it is of."""

    @property
    def model(self) -> str: ...  # noqa: D102 - see the class
    @property
    def selector(self) -> str: ...  # noqa: D102


@attrs.frozen(kw_only=True)
class MissShares:
    """Misses / selected blocks with `slots` slots under `policy`.

    recording  counted on the recording, played from empty slots; its second half
    model      counted in the same way on as many steps of drawn selections
    steady     of drawn selections in their steady state
    """

    policy: str
    slots: int
    recording: float
    model: float
    steady: float


def fit_locality(recording: Described, *, name: str, file: str, sha256: str) -> LocalityModel:
    """Churn and reuse of a recording; file and sha256 say which one.

    Counted are steps in which a row has more blocks than the budget, and a previous selection. A newcomer's
    depth is its place in the stack of all blocks that the recording has shown. One that was never shown
    before lies deeper than all of them: such depths are known only from below, and the curve is Kaplan and
    Meier's estimate for data cut off in this way (J. Am. Stat. Assoc. 53, 1958). It ends where fewer than 25
    newcomers are known to lie as deep. Blocks dropped in one step cannot be told apart by age: at depths below
    1 + churn the curve is only as sharp as that.
    Raises RecordingError where no row outgrows its budget.
    """
    counts = _Counts()
    for part in _streams(recording):
        counts.add(part, recording.spec)
    if not counts.selected:
        raise RecordingError(
            f"no row has more than budget={recording.spec.budget} blocks of {recording.spec.block} tokens in two "
            "steps: nothing to choose from; record a longer text or a smaller budget"
        )
    depths, known = np.concatenate(counts.depths), np.concatenate(counts.known)
    points = _curve(depths, known)
    shape = recording.selections.shape
    fitted = Fitted(
        recording=file, sha256=sha256, model=recording.model, selector=recording.selector,
        budget=recording.spec.budget, streams=math.prod(shape[1:4]), steps=shape[0], selected=counts.selected,
        newcomers=int(depths.size), unseen=int((~known).sum()),
    )  # fmt: skip
    return LocalityModel(
        name=name, title=f"selections of {recording.selector} on {recording.model}, budget {recording.spec.budget}",
        source=f"fitted to {file}", churn=depths.size / counts.selected, reuse=points, tail=_tail(points),
        fitted=fitted,
    )  # fmt: skip


def miss_shares(recording: Recorded, model: LocalityModel) -> tuple[MissShares, ...]:
    """What the recording and its fit miss at 1, 2 and 4 selections' slots, under each policy."""
    steps = recording.selections.shape[0]
    skip = steps // 2
    drawn = draw(model, recording.spec, streams=_stream_count(recording), tokens=_median_tokens(recording), steps=steps)
    told = []
    for policy in POLICIES:
        for times in TIMES:
            slots = times * recording.spec.budget
            counted, made = (_share(one, slots, policy, skip) for one in (recording, drawn))
            steady = model.churn * (float(model.survival(times)) if policy == "lru" else 1.0)
            told.append(MissShares(policy=policy, slots=slots, recording=counted, model=made, steady=steady))
    return tuple(told)


@attrs.frozen(kw_only=True, eq=False)
class Drawn:
    """Selections of a locality, laid out as a recording of as many layers with one row and one KV head."""

    spec: BlockSpec
    selections: Selection
    positions: Ints
    scored: None = None


def draw(model: LocalityModel, spec: BlockSpec, *, streams: int, tokens: int, steps: int, seed: int = 0) -> Drawn:
    """Selections of `steps` steps of `streams` streams that hold `tokens` tokens before them."""
    source = Streams(model, spec, streams=streams, tokens=tokens, seed=seed)
    selections = np.full((steps, streams, 1, 1, spec.budget), NO_BLOCK, np.int32)
    for step in range(steps):
        chosen = source.step()
        selections[step, :, 0, 0, : chosen.shape[1]] = chosen
    return Drawn(spec=spec, selections=selections, positions=tokens + np.arange(steps)[:, None])


def _share(recording: Recorded, slots: int, policy: str, skip: int) -> float:
    facts = recorded_facts(recording, slots=slots, policy=policy, skip=skip)
    return sum(int(step.misses.sum()) for step in facts) / max(1, sum(int(step.selected.sum()) for step in facts))


def _stream_count(recording: Recorded) -> int:
    return min(_MOST_STREAMS, math.prod(recording.selections.shape[1:4]))


def _median_tokens(recording: Recorded) -> int:
    first = recording.positions[0]
    return int(np.median(first[first >= 0])) if (first >= 0).any() else 0


def _streams(recording: Recorded) -> Iterator[tuple[Selection, Ints, Ints]]:
    """A layer at a time: selection int32 [steps, P, W], opened and positions int64 [steps, P]; P = B x Hk."""
    steps, layers, _, heads, width = recording.selections.shape
    opened, positions = (np.repeat(each, heads, axis=1) for each in (opened_blocks(recording), recording.positions))
    for layer in range(layers):
        yield recording.selections[:, layer].reshape(steps, -1, width), opened, positions


@attrs.define
class _Counts:
    """Running counts: blocks selected; depth, in selections, of every newcomer, and whether it is known exactly."""

    selected: int = 0
    depths: list[Floats] = attrs.field(factory=list)
    known: list[npt.NDArray[np.bool_]] = attrs.field(factory=list)

    def add(self, part: tuple[Selection, Ints, Ints], spec: BlockSpec) -> None:
        """Count one layer."""
        selections, opened, positions = part
        streams = np.arange(selections.shape[1])[:, None]
        # Step in which each block was last selected, -1 = never; the last column belongs to no block.
        last = np.full((selections.shape[1], int(selections.max()) + 2), -1, np.int64)
        previous = np.full(selections.shape[1], -1)
        for step, chosen in enumerate(selections):
            valid = chosen != NO_BLOCK
            counts = (positions[step] // spec.block + 1 > spec.budget) & (previous >= 0)
            seen = last[streams, chosen]
            fresh = valid & (seen != previous[:, None]) & (chosen != opened[step][:, None]) & counts[:, None]
            self.selected += int(valid[counts].sum())
            rows = np.nonzero(fresh)[0]
            self._depths(last[rows], seen[fresh], valid.sum(1)[rows])
            active = valid.any(1)
            last[np.broadcast_to(streams, chosen.shape)[valid], chosen[valid]] = step
            previous[active] = step

    def _depths(self, last: Ints, seen: Ints, selected: Ints) -> None:
        """last int64 [m, N], the stack of each newcomer's stream; seen and selected [m]."""
        newer, alike = (last > seen[:, None]).sum(1), (last == seen[:, None]).sum(1)
        known = seen >= 0
        # Blocks dropped in one step are equally old: their newcomers are spread evenly over their places.
        among = np.arange(1, seen.size + 1) * _GOLDEN % 1
        place = np.where(known, newer + 1 + (alike - 1) * among, (last >= 0).sum(1))
        self.depths.append(place / selected)
        self.known.append(known)


def _curve(depths: Floats, known: npt.NDArray[np.bool_]) -> tuple[tuple[float, float], ...]:
    """Points of the survival function at KNOTS."""
    events, how_many = np.unique(depths[known], return_counts=True)
    at_risk = depths.size - np.searchsorted(np.sort(depths), events, side="left")
    alive = np.cumprod(1 - how_many / np.maximum(at_risk, 1))
    points, least = [(1.0, 1.0)], 0.5 / max(1, depths.size)
    for knot in KNOTS[1:]:
        if (depths >= knot).sum() < _LEAST_AT_RISK:
            break
        before = int(np.searchsorted(events, knot, side="right"))
        points.append((knot, round(max(least, float(alive[before - 1])) if before else 1.0, 6)))
    return tuple(points)


def _tail(points: tuple[tuple[float, float], ...]) -> float:
    """How steeply the curve falls over its last halving of depth; 1 where the recording does not tell."""
    (x, share) = points[-1]
    nearer, more = min(points, key=lambda point: abs(point[0] - x / 2))
    if more <= share or x <= nearer:
        return _TAIL
    low, high = _TAIL_BOUNDS
    return round(min(high, max(low, math.log(more / share) / math.log(x / nearer))), 4)
