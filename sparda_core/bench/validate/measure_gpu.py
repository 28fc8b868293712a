"""Measuring cells on a GPU: several sessions open at once, timed in turns. Loads torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.measure import Bench, machine_name
from sparda_core.bench.decode.store import Settings
from sparda_core.bench.decode.timeline import BEFORE, graph_timeline
from sparda_core.bench.validate.background import Background
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.clocks import StepClock, clock_for, mark
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import Folder
from sparda_core.bench.validate.played import PlayedTrace, differs
from sparda_core.bench.validate.record import Measured, Record
from sparda_core.errors import CapacityError, RecordingError, SpardaError
from sparda_core.runtimes.gpu.session import GpuSession

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]
GIGA = 1e9
#: Sessions open at once at most, and device memory left free beside them.
TOGETHER, FREE_BYTES = 4, 6 << 30
#: Steps read back after the timed ones; steps beyond those that a timeline takes.
CONFIRMED, TIMELINE_STEPS = 6, 4
SPARE = CONFIRMED + 96
#: A step's time where none was measured yet: another stream must go on for at least as long.
GUESS_S = 25e-3
#: Words of failures after which nothing works on the device any more.
BROKEN = ("CUDA error", "illegal memory access", "unspecified launch failure")


@attrs.frozen(kw_only=True)
class GpuSettings:
    """How long each cell is measured. A step time is a median of all rounds.

    timelines  names of cells of which a timeline is taken, too
    limit_s    no cell is begun after so many seconds; None: no limit
    """

    warmup: int = 10
    rounds: int = 3
    round_steps: int = 32
    seed: int = 0
    timelines: tuple[str, ...] = ()
    limit_s: float | None = None

    def bench(self) -> Settings:
        """As the decode benchmark has it, whose sessions these are."""
        return Settings(warmup=self.warmup, steps=max(64, self.rounds * self.round_steps), seed=self.seed)

    def identity(self) -> dict[str, Any]:
        """What makes two measurements comparable."""
        return {name: getattr(self, name) for name in ("warmup", "rounds", "round_steps", "seed")}


def decode_cell(cell: ValidationCell) -> Cell:
    """The decode benchmark's name for a cell."""
    return Cell(
        selector=cell.selector, runtime=cell.runtime, batch=cell.batch, context=cell.context, churn=cell.churn or 0.0,
        policy=cell.policy, slots=cell.slots, engine=cell.engine, launches=cell.launches, lead=cell.lead,
        shape=cell.shape, ctas=cell.ctas, in_flight_kib=cell.in_flight_kib, block=cell.block,
    )  # fmt: skip


@attrs.define(kw_only=True, eq=False)
class _Opened:
    """A cell whose session is open."""

    record: Record
    session: GpuSession
    played: PlayedTrace
    clock: StepClock
    background: Background | None
    rounds: list[list[float]] = attrs.field(factory=list)
    taken: list[float] = attrs.field(factory=list)
    made: int = 0
    confirmed: int = 0

    def warm(self, steps: int) -> None:
        """The first steps: compiled, captured, slots and caches as they stay."""
        self.session.run(1, dict.fromkeys(self.session.rows, 1))
        for _ in range(steps - 1):
            self.session.run(1)
        self.made = steps

    def round(self, steps: int) -> None:
        """Time some steps; what the last of them missed is read back afterwards."""
        if self.background is not None:
            expected = sum(self.rounds[-1]) if self.rounds else steps * GUESS_S
            self.background.start(expected)
        self.rounds.append(self.clock.steps(steps))
        self.made += steps
        if self.background is not None:
            taken = self.background.taken_bytes_per_s(mark(self.session))
            if taken is None:
                raise RecordingError("the other stream had ended before the steps did: what it took is not known")
            self.taken.append(taken)
        self.confirm()

    def confirm(self) -> None:
        """Compare the last step's counts with what was played; raises RecordingError where they differ."""
        wrong = differs(self.session.last_facts().misses, self.played.misses(self.made - 1))
        if wrong is not None:
            raise RecordingError(f"step {self.made - 1}: {wrong}")
        self.confirmed += 1


class GpuRun:
    """Measures listed cells into a folder. Several sessions are open at once, as memory allows, and take turns."""

    def __init__(
        self, listed: Sequence[Record], settings: GpuSettings, folder: Path, *, report: Report,
        tell: Callable[[str], object] | None = None, resume: bool = True, bench: Bench | None = None,
        machine: str | None = None,
    ) -> None:  # fmt: skip
        """bench, machine: what measures, and its name; None: the CUDA device of this process."""
        self._listed, self._settings, self._folder, self._report = list(listed), settings, Folder(folder), report
        self._identity = {"machine": machine or machine_name(), "settings": settings.identity()}
        self._kept = {record.cell.id: kept for record in listed if resume and (kept := self._found(record))}
        cells = [decode_cell(record.cell) for record in listed if record.cell.id not in self._kept]
        self._bench = bench or Bench(settings.bench(), cells, report=report, tell=tell, spare=SPARE)
        self._began = time.monotonic()

    def _found(self, record: Record) -> Record | None:
        kept = self._folder.read(record.cell)
        same = kept is not None and kept.identity == self._identity and not kept.failed
        # Why it is measured may have been told anew.
        return attrs.evolve(
            kept, tier=record.tier, stratum=record.stratum, ratio=record.ratio, groups=record.groups
        ) if kept is not None and same else None  # fmt: skip

    @property
    def so_far(self) -> tuple[Record, ...]:
        """Records in the order of the list: those that are kept, the others as listed."""
        return tuple(self._kept.get(record.cell.id, record) for record in self._listed)

    def run(self) -> tuple[Record, ...]:
        """Measure what is missing; records in the order of the list, those of cells that were not reached as listed."""
        todo = [record for record in self._listed if record.cell.id not in self._kept]
        done = dict(self._kept)
        with self._bench:
            while todo and not self._late():
                for record in self._group(todo):
                    done[record.cell.id] = record
                    self._folder.write(record)
                    todo = [one for one in todo if one.cell.id != record.cell.id]
                    self._report("cells", len(self._listed) - len(todo), len(self._listed))
        return tuple(done.get(record.cell.id, record) for record in self._listed)

    def _late(self) -> bool:
        limit = self._settings.limit_s
        return limit is not None and time.monotonic() - self._began > limit

    def _group(self, todo: Sequence[Record]) -> list[Record]:
        """Measure as many of the first cells as there is room for."""
        opened: list[_Opened] = []
        ended: list[Record] = []
        with contextlib.ExitStack() as stack:
            for record in todo[:TOGETHER]:
                if opened and not self._room(record.cell):
                    break
                try:
                    opened.append(stack.enter_context(self._open(record)))
                except (CapacityError, torch.cuda.OutOfMemoryError) as wrong:
                    if opened:  # alone it may fit
                        break
                    ended.append(self._refused(record, wrong, failed=False))
                    break
                except Exception as wrong:  # noqa: BLE001 - told in the record, and tried again by another run
                    ended.append(self._refused(record, wrong, failed=True))
            return ended + self._measure(opened)

    def _room(self, cell: ValidationCell) -> bool:
        if not torch.cuda.is_available():
            return True
        return torch.cuda.mem_get_info()[0] - FREE_BYTES > self._bench.device_bytes(decode_cell(cell))

    @contextlib.contextmanager
    def _open(self, record: Record) -> Iterator[_Opened]:
        cell, measured_as = record.cell, decode_cell(record.cell)
        trace = self._bench.trace(measured_as)
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(self._bench.filled(measured_as, trace))
            played = PlayedTrace(
                trace, spec=measured_as.spec, context=cell.context, slots=cell.slot_count, policy=cell.policy,
                resident_layers=session.plan.resident_layers if cell.offloads else session.shape.layers,
                every=cell.selector == "dense",
            )  # fmt: skip
            background = None
            if cell.background_gb_s and cell.offloads:
                memory = self._bench.host_memory()
                rate = cell.background_gb_s * GIGA
                background = stack.enter_context(Background(memory, session.machinery.device, rate))
            one = _Opened(
                record=record, session=session, played=played, background=background,
                clock=clock_for(session, beside=background is not None),
            )  # fmt: skip
            one.warm(self._settings.warmup)
            yield one

    def _measure(self, opened: Sequence[_Opened]) -> list[Record]:
        failed: dict[str, Record] = {}
        for _ in range(self._settings.rounds):
            for one in opened:
                if one.record.cell.id in failed:
                    continue
                try:
                    one.round(self._settings.round_steps)
                except Exception as wrong:  # noqa: BLE001 - as above
                    failed[one.record.cell.id] = self._refused(one.record, wrong, failed=True)
        return [failed.get(one.record.cell.id) or self._end(one) for one in opened]

    def _end(self, one: _Opened) -> Record:
        """Read some more steps back, take a timeline where one is wanted, and keep what was measured."""
        record, settings = one.record, self._settings
        try:
            facts = one.played.facts(settings.warmup, settings.rounds * settings.round_steps)
            for _ in range(CONFIRMED):
                one.session.run(1)
                one.made += 1
                one.confirm()
            size = one.session.machinery.options.copy_size(record.cell.batch)
            kernel = record.cell.offloads and record.cell.engine == "uva"
            shape, spec = one.session.shape, one.session.spec
            timeline, timeline_facts = self._timeline(one)
            measured = Measured(
                rounds_s=one.rounds, facts=facts, confirmed=one.confirmed,
                copy_ctas=size.ctas if kernel else None,
                copy_in_flight_bytes=size.in_flight_bytes if kernel else None,
                block_bytes=2.0 * spec.block * shape.head_dim * one.session.machinery.decoder.dtype.itemsize,
                background_bytes_per_s=sum(one.taken) / len(one.taken) if one.taken else 0.0,
                launch=one.session.describe()["steps"], timeline=timeline, timeline_facts=timeline_facts,
            )  # fmt: skip
        except Exception as wrong:  # noqa: BLE001 - as above
            return self._refused(record, wrong, failed=True)
        return attrs.evolve(record, measured=measured, identity=self._identity, predicted={})

    def _timeline(self, one: _Opened) -> tuple[str | None, CompactFacts | None]:
        """Spans of some further steps and their facts, where they are wanted and can be had."""
        if one.record.cell.key not in self._settings.timelines:
            return None, None
        facts = one.played.facts(one.made + BEFORE, TIMELINE_STEPS)
        try:
            timeline = graph_timeline(one.session, steps=TIMELINE_STEPS)
        except SpardaError as wrong:
            self._note(f"{one.record.cell.key}: no timeline: {wrong}\n")
            return None, None
        return self._folder.write_timeline(one.record.cell, timeline), facts

    def _note(self, line: str) -> None:
        self._bench.note(line)

    def _refused(self, record: Record, wrong: Exception, *, failed: bool) -> Record:
        text = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        self._note(f"{record.cell.key}: {text}\n")
        if any(word in text for word in BROKEN):
            # Nothing that follows could be measured by this process; what is kept is kept.
            raise RecordingError(f"{record.cell.key}: {text}; the device is lost to this process, run again") from wrong
        return attrs.evolve(record, refused=text, failed=failed, measured=None, identity=self._identity)
