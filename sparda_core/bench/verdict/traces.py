"""Measured and simulated steps of a cell side by side: one trace file each, and one picture. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from sparda_core.bench.step_figures import step_numbers
from sparda_core.bench.validate.folder import Folder
from sparda_core.bench.validate.predicting import spread
from sparda_core.bench.validate.record import Record
from sparda_core.bench.verdict.make import ready_of
from sparda_core.bench.verdict.parts import timeline_facts
from sparda_core.files import make_folder
from sparda_core.simulator.observe import traced
from sparda_core.simulator.profile import Profile
from sparda_core.spans import Timeline
from sparda_core.trace import Origin, TraceSource, write_trace

TRACES, TIMELINE = "traces", "timeline.png"
#: Steps of a trace; viewers stay quick, and one step looks like the next.
STEPS = 4


def trace_of(record: Record, real: Timeline, profile: str | Profile) -> tuple[TraceSource, TraceSource]:
    """A record's measured timeline and its prediction on the same tracks, of as many steps.

    Predicted from the facts of these steps; where they were not kept, from the record's own: of the same rows, a few
    steps before.
    """
    ready = ready_of(record, profile)
    numbers = step_numbers(real)[:STEPS]
    kept = attrs.evolve(real, label=f"measured {record.cell.key}", spans=[s for s in real.spans if s.step in numbers])
    own = timeline_facts(record, real)[: len(numbers)]
    got = ready.planned.predict(own or spread(ready.replay or ready.facts, len(numbers)))
    return (
        TraceSource(timeline=kept, plan=ready.planned.plan, origin=Origin.MEASURED, notes=dict(record.identity)),
        traced(got, label=f"predicted {record.cell.key} on {ready.planned.profile.name}"),
    )  # fmt: skip


Drawn = Sequence[tuple[Record, tuple[TraceSource, TraceSource]]]


def pairs_of(measured: Folder, records: Sequence[Record], profile: str | Profile) -> Drawn:
    """Both timelines of every record that has a measured one."""
    timelines = [(record, measured.timeline(record)) for record in records]
    return [(record, trace_of(record, real, profile)) for record, real in timelines if real is not None]


def write_traces(
    folder: Path, measured: Folder, records: Sequence[Record], profile: str | Profile, *, figure: bool
) -> list[Path]:  # fmt: skip
    """A trace for every record with a timeline, and a picture of one that overlaps; returns what was written."""
    written: list[Path] = []
    pairs = pairs_of(measured, records, profile)
    for record, sources in pairs:
        path = make_folder(folder / TRACES) / f"{record.cell.id}.json"
        write_trace(path, sources)
        written.append(path)
    if pairs and figure:
        written.append(_draw(folder / TIMELINE, pairs))
    return written


def draw_step(path: Path, measured: Folder, records: Sequence[Record], profile: str | Profile) -> None:
    """The picture alone; nothing where no record has a timeline."""
    pairs = pairs_of(measured, records, profile)
    if pairs:
        _draw(path, pairs)


def _draw(path: Path, drawn: Drawn) -> Path:
    """One step each of up to two cells: one that prefetches and, under the same load, one that waits."""
    from sparda_core.bench.plot_timelines import draw_timelines

    early = [one for one in drawn if one[0].cell.runtime == "offload-prefetch"] or list(drawn)
    chosen = max(early, key=lambda one: (one[0].stratum == "balanced", one[0].cell.batch, one[0].cell.key))
    load = chosen[0].cell.selector, chosen[0].cell.load
    others = [one for one in drawn if one[0].cell.runtime == "offload-sync"]
    beside = [one for one in others if (one[0].cell.selector, one[0].cell.load) == load][:1]
    shown = [(source.timeline.label, source.timeline) for one in (*beside, chosen) for source in one[1]]
    lines = [(_short(label), timeline) for label, timeline in shown]
    draw_timelines(lines, path, title=f"One step, measured and predicted: {chosen[0].cell.key}")
    return path


def _short(label: str) -> str:
    """The first words: measured or predicted, and the method."""
    words = label.split()
    return f"{words[0]}\n{' '.join(words[1:3])}"
