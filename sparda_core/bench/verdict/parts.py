"""Figures of a cell besides its step time: by timelines, or by what was timed alone. Torch-free.

A right total of wrong parts would fail on the next machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.bench.step_figures import StepFigures, slowdown_beside_copies, step_figures, step_numbers
from sparda_core.bench.validate.folder import Folder
from sparda_core.bench.validate.predicting import spread
from sparda_core.bench.validate.record import Record
from sparda_core.bench.verdict.judged import Part
from sparda_core.bench.verdict.make import Ready
from sparda_core.errors import RecordingError
from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op
from sparda_core.simulator.alone import alone_s
from sparda_core.simulator.run import Simulator, run_steps
from sparda_core.simulator.step_models import NO_CONTENTION
from sparda_core.spans import Timeline
from sparda_core.work import Work

BANDWIDTH, EXPOSED, SLOWDOWN = "copy bandwidth while copying", "exposed wait of a mean layer", "slowdown beside copies"
FARTHEST = "exposed wait of the layer that is farthest off"
COMPUTE, COPYING, HIDDEN = "compute lane at work", "copies at work", "hidden share of copies"
COPY_ALONE, COPY_BESIDE = "copy bandwidth, alone", "copy bandwidth, beside compute that never ends"
#: An exposed wait is right within this share, or within so many seconds.
EXPOSED_SHARE, EXPOSED_S = 0.10, 5e-6
#: Kinds that others launch along are told with them: a row of a bench may have both under either name.
_FUSED = {str(Kind.ENTRIES): str(Kind.PROJECT), str(Kind.APPEND): str(Kind.PROJECT), "select": "select and diff",
          str(Kind.DIFF): "select and diff"}  # fmt: skip


@attrs.frozen(kw_only=True)
class TimelineParts:
    """Parts of records whose folder has a measured timeline; of others none.

    records  all of the folder: a synchronous or resident one of the same load tells what compute takes alone
    """

    folder: Folder
    records: Sequence[Record]

    def __call__(self, record: Record, ready: Ready) -> list[Part]:
        """The parts of one record."""
        real = self.folder.timeline(record)
        if real is None or record.measured is None or not ready.replay:
            return []
        measured, plan, rows = record.measured, ready.planned.plan, record.cell.batch
        own = timeline_facts(record, real)
        facts = own or spread(ready.replay, len(step_numbers(real)))
        ideal = ready.run(facts).timeline
        moved = sum(float(one.misses.sum()) for one in facts) / len(facts) * measured.block_bytes
        seen = step_figures(real, plan, rows=rows, moved_bytes=moved if own else measured.moved_bytes)
        told = step_figures(ideal, plan, rows=rows, moved_bytes=moved)
        quiet = self._alone(record)
        slower = None if quiet is None else slowdown_beside_copies(real, quiet)
        free = ready.run(facts, NO_CONTENTION).timeline
        # Layers miss unequally: other steps' facts say nothing of a single one.
        layers = _farthest(seen, told) if own else ()
        return [*_figure_parts(seen, told), *layers, *_slowdown(slower, slowdown_beside_copies(ideal, free))]

    def _alone(self, record: Record) -> Timeline | None:
        """The timeline of a record in which compute has no copy beside it, under the same load."""
        for other in self.records:
            same = (other.cell.selector, other.cell.batch, other.cell.context, other.cell.shape) == (
                record.cell.selector, record.cell.batch, record.cell.context, record.cell.shape
            )  # fmt: skip
            if same and other.cell.runtime in ("resident", "offload-sync"):
                found = self.folder.timeline(other)
                if found is not None:
                    return found
        return None


def _figure_parts(seen: StepFigures, told: StepFigures) -> Iterator[Part]:
    yield Part(name=COMPUTE, unit="s", measured=seen.compute_s, predicted=told.compute_s)
    if seen.copying_s and told.copying_s:
        yield Part(name=COPYING, unit="s", measured=seen.copying_s, predicted=told.copying_s)
        assert seen.copy_bytes_per_s is not None
        assert told.copy_bytes_per_s is not None
        yield Part(name=BANDWIDTH, unit="B/s", measured=seen.copy_bytes_per_s, predicted=told.copy_bytes_per_s)
    if seen.hidden_share is not None and told.hidden_share is not None:
        yield Part(name=HIDDEN, unit="1", measured=seen.hidden_share, predicted=told.hidden_share)
    if layers := len(seen.exposed_by_layer):
        yield Part(name=EXPOSED, unit="s", measured=seen.exposed_s / layers, predicted=told.exposed_s / layers)
    for kind, spent in _grouped(seen.by_kind).items():
        if kind == Kind.FETCH:  # told as COPYING
            continue
        predicted = _grouped(told.by_kind).get(kind)
        if predicted and spent:
            yield Part(name=kind, unit="s", measured=spent, predicted=predicted)


def timeline_facts(record: Record, real: Timeline) -> Sequence[StepFacts]:
    """Facts of the steps of a record's timeline; none where they were not kept.

    Raises RecordingError where they are not of as many steps.
    """
    kept = None if record.measured is None else record.measured.timeline_facts
    if kept is None:
        return ()
    steps = len(step_numbers(real))
    if kept.steps != steps:
        raise RecordingError(f"the timeline of {record.cell.key!r} has {steps} steps, its facts are of {kept.steps}")
    return kept.step_facts()


def exposed_excess(measured: float, predicted: float) -> float:
    """How far off an exposed wait is, in units of what is allowed: at most 1 is right."""
    return abs(predicted - measured) / max(EXPOSED_SHARE * measured, EXPOSED_S)


def _farthest(seen: StepFigures, told: StepFigures) -> Iterator[Part]:
    waits = [(seen_s, told.exposed_by_layer.get(layer, 0.0)) for layer, seen_s in seen.exposed_by_layer.items()]
    if waits:
        measured, predicted = max(waits, key=lambda pair: exposed_excess(*pair))
        yield Part(name=FARTHEST, unit="s", measured=measured, predicted=predicted)


def _slowdown(measured: float | None, predicted: float | None) -> Iterator[Part]:
    if measured is not None and predicted is not None:
        yield Part(name=SLOWDOWN, unit="1", measured=measured, predicted=predicted)


def _grouped(by_kind: Mapping[str, float]) -> dict[str, float]:
    """Kinds as they are told: what is launched along counts for the launch."""
    total: dict[str, float] = {}
    for kind, spent in by_kind.items():
        name = _FUSED.get(kind, kind)
        total[name] = total.get(name, 0.0) + spent
    return total


@attrs.frozen(kw_only=True)
class RowParts:
    """Parts of rows of `sparda bench decode`, whose kinds of operations and transfers were each timed alone.

    rows  by the key of the cell that a row became
    """

    rows: Mapping[str, Mapping[str, Any]]

    def __call__(self, record: Record, ready: Ready) -> list[Part]:
        """The parts of one record."""
        row = self.rows.get(record.cell.key)
        if row is None or ready.host_issues or not ready.facts:
            return []
        told = alone_by_kind_s(ready)
        seen = _grouped(row.get("kinds_s", {}))
        parts = [
            Part(name=f"{kind}, alone", unit="s", measured=spent, predicted=told[kind])
            for kind, spent in seen.items() if told.get(kind)
        ]  # fmt: skip
        for name, field, predicted_s in (
            (COPY_ALONE, "copies_s", told.get(Kind.FETCH)), (COPY_BESIDE, "copies_beside_s", beside_compute_s(ready)),
        ):  # fmt: skip
            if row.get(field) and predicted_s:
                blocks = sum(float(one.misses.sum()) for one in ready.facts) / len(ready.facts)
                moved = blocks * ready.planned.context.host_block_bytes
                measured = float(row["moved_bytes"]) / float(row[field])
                parts.append(Part(name=name, unit="B/s", measured=measured, predicted=moved / predicted_s))
        return parts


def beside_compute_s(ready: Ready) -> float:
    """Predicted seconds of a step's copies, one after another beside its compute, which begins anew until they end.

    As the bench times it: no operation waits for a copy, and neither `embed` nor `diff` runs, which would write the
    lists that are being copied. Of the first step's facts. 0 where nothing is copied.
    """
    planned, fact = ready.planned, ready.facts[0]
    fetches = [attrs.evolve(op, after=()) for op in planned.plan.ops if op.kind == Kind.FETCH]
    idle = (Kind.EMBED, Kind.DIFF, Kind.HEAD)
    compute = [attrs.evolve(op, after=()) for op in planned.plan.lane(Lane.COMPUTE) if op.kind not in idle]
    alone = alone_by_kind_s(ready)
    if not fetches or not alone.get(Kind.FETCH):
        return 0.0
    layers = planned.pair.shape.layers
    lap_s = sum(spent for kind, spent in alone.items() if kind != Kind.FETCH)
    laps = 2 + int(_SLOWEST * alone[Kind.FETCH] / lap_s)
    ops = [attrs.evolve(op, layer=op.layer + lap * layers) for lap in range(laps) for op in compute]
    plan = attrs.evolve(planned.plan, ops=[*fetches, *ops])

    def work(op: Op, facts: StepFacts) -> Work:
        return ready.work(attrs.evolve(op, layer=op.layer % layers), facts)

    return run_steps(plan, [fact], work, planned.profile).timeline.busy_ns(Lane.H2D) / 1e9


#: Copies beside compute take no longer than so many times what they take alone.
_SLOWEST = 4


def alone_by_kind_s(ready: Ready) -> dict[str, float]:
    """Predicted seconds of a mean step by kind of operation, each with the machine to itself, launch gaps included."""
    planned = ready.planned
    simulator, capacity = Simulator(planned.plan, ready.work, planned.profile), planned.profile.capacity()
    total: dict[str, float] = {}
    for fact in ready.facts:
        for op, price in zip(planned.plan.ops, simulator.prices(fact), strict=True):
            name = _FUSED.get(str(op.kind), str(op.kind))
            total[name] = total.get(name, 0.0) + alone_s(price, capacity) / len(ready.facts)
    return total
