"""Measuring on this machine's CPU: a real model, a profile of the machine, a handful of cells. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core import __version__
from sparda_core.bench.calibrate_cpu import Calibration, profile_of, sample_cpu
from sparda_core.bench.config import CompareConfig
from sparda_core.bench.contenders import Contender, combine, contenders
from sparda_core.bench.paired import Samples, Start, measure_in_turns
from sparda_core.bench.parts import PartStore
from sparda_core.bench.provenance import machine
from sparda_core.bench.text import Reading, read
from sparda_core.bench.timelines import join_steps
from sparda_core.bench.timing import choose_link
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.cpu_cells import SELECTORS, CpuLoad, cpu_loads
from sparda_core.bench.validate.folder import Folder
from sparda_core.bench.validate.machines import CPU_PROFILE
from sparda_core.bench.validate.predicting import Planned, balance_of, planned_here, predict_record
from sparda_core.bench.validate.record import Measured, Record, stratum_of
from sparda_core.bench.workbench import Workbench
from sparda_core.compose import Combination, make_selector
from sparda_core.errors import ConfigError
from sparda_core.models.load import load_model
from sparda_core.models.synthetic import synthetic_model
from sparda_core.shapes import ModelShape
from sparda_core.simulator.cpu_samples import CpuSamples
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile, save_profile

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]
#: A model of no use but to run: random weights, for machines without any others.
TINY = "tiny"
TINY_SHAPE = ModelShape(
    name="tiny", layers=6, hidden=256, ffn=512, q_heads=8, kv_heads=2, head_dim=32, vocab=512, context=4096
)
#: Steps that a pass of calibration measures of each combination and context.
PASS_STEPS = 2
GIGA = 1e9


@attrs.frozen(kw_only=True)
class CpuSettings:
    """What is run, and how long.

    tokens  of the document
    steps   timed, of each cell, over all rounds; a multiple of the rounds
    """

    model: str = "smollm2"
    tokens: int = 2048
    steps: int = 24
    rounds: int = 3
    warmup: int = 3
    threads: int | None = None

    def config(self) -> CompareConfig:
        """The same as the comparison's settings."""
        return CompareConfig(
            model=self.model, max_tokens=self.tokens, timed_steps=self.steps, rounds=self.rounds, warmup=self.warmup,
            threads=self.threads,
        )  # fmt: skip


class CpuRun:
    """Measures the cells of one folder; what is there of the same settings and machine is kept."""

    def __init__(self, settings: CpuSettings, folder: Path, *, report: Report, resume: bool = True) -> None:
        self._settings, self._folder, self._report = settings, Folder(folder), report
        self._bench = workbench(settings, report)
        shape, config = self._bench.decoder.shape, self._bench.config
        every = contenders(config, shape, blocks=1, has_forecast=self._bench.decoder.has_forecast)
        self._contenders = {one.label: one for one in every if one.label in SELECTORS}
        told = config.key(self._bench.reading.sha256, __version__)
        self._store = PartStore(folder / "parts", key=told)
        if not resume:
            self._store.clear()
            self._store = PartStore(folder / "parts", key=told)
        self._resume = resume
        self._identity = {
            "machine": machine()["cpu"], "cores": machine()["cores"], "model": settings.model,
            "settings": attrs.asdict(settings), "shape": attrs.asdict(shape),
        }  # fmt: skip

    def run(self) -> tuple[Record, ...]:
        """Calibrate, choose the link, measure and predict every cell; records in the order of the loads.

        A CPU's clock wanders within minutes. So a pass of calibration goes before every load and one behind the last:
        the profile is of the same minutes as the cells.
        """
        samples = self._pass(0)
        link = self._store.get("link", lambda: choose_link(self._bench, self._contenders["forecast"]))
        room = self._settings.steps + self._settings.warmup + 1
        loads = cpu_loads(tokens=len(self._bench.reading.tokens), room=room, link_gb_s=link["bytes_per_s"] / GIGA)
        records: list[Record] = []
        for done, load in enumerate(loads):
            records += self._load(load, self._profile(samples))
            self._report("loads", done + 1, len(loads))
            samples += self._pass(done + 1)
        profile = self._profile(samples)
        return tuple(self._predicted(record, profile) for record in records)

    def _pass(self, at: int) -> CpuSamples:
        """One pass of calibration, kept: a run that goes on has it."""
        return CpuSamples.of(self._store.get(f"calibration {at}", lambda: attrs.asdict(self._calibrate())))

    def _profile(self, samples: CpuSamples) -> Profile:
        """The profile by the passes so far, kept beside the records."""
        return load_profile(
            save_profile(profile_of(samples, threads=self._settings.threads), self._folder.path / CPU_PROFILE)
        )

    def _calibrate(self) -> CpuSamples:
        last = len(self._bench.reading.tokens) - 8
        calibration = Calibration(
            selectors=tuple(make_selector(self._bench.decoder, c.selector, **c.options) for c in self._ordered()),
            contexts=(last // 2, last), spec=self._bench.config.spec, steps=PASS_STEPS, warmup=1,
        )  # fmt: skip
        return sample_cpu(
            self._bench.decoder, self._bench.reading.tokens, calibration, threads=self._settings.threads,
            snapshot=self._bench.document, report=self._report,
        )  # fmt: skip

    def _ordered(self) -> list[Contender]:
        return [self._contenders[name] for name in SELECTORS if name in self._contenders]

    def _load(self, load: CpuLoad, profile: Profile) -> list[Record]:
        methods = [pair for pair in load.methods if pair[0] in self._contenders]
        load = attrs.evolve(load, methods=tuple(methods))
        cells = list(load.cells(self._bench.config.spec, self._bench.decoder.shape.name))
        kept = [self._kept(cell) for cell in cells]
        found = [record for record in kept if record is not None]
        if len(found) == len(cells):
            return found
        pairs = {cell.key: self._pair(cell) for cell in cells}
        samples = self._timed(load, pairs, timeline=False, steps=self._settings.steps)
        spans: dict[str, Samples] = {}
        if load.tier == "interpolated":
            spans = self._timed(load, pairs, timeline=True, steps=self._settings.rounds)
        return [
            self._record(cell, load, pairs[cell.key], samples[cell.key], spans.get(cell.key), profile) for cell in cells
        ]

    def _kept(self, cell: ValidationCell) -> Record | None:
        record = self._folder.read(cell)
        return record if record is not None and self._resume and record.identity == self._told(cell) else None

    def _told(self, cell: ValidationCell) -> dict[str, Any]:
        return {**self._identity, "selector_options": self._contenders[cell.selector].options}

    def _pair(self, cell: ValidationCell) -> Combination:
        link = None if cell.link_gb_s is None else cell.link_gb_s * GIGA
        return combine(
            self._bench.decoder, self._contenders[cell.selector], cell.runtime, self._bench.config,
            link_bytes_per_s=link,
        )  # fmt: skip

    def _timed(
        self, load: CpuLoad, pairs: dict[str, Combination], *, timeline: bool, steps: int
    ) -> dict[str, Samples]:  # fmt: skip
        tokens, warmup = self._bench.reading.tokens, self._settings.warmup
        feed = tokens[load.context - warmup : load.context + steps]
        start = Start(snapshot=self._bench.document, tokens=load.context - warmup, batch=load.batch)
        what = f"{load.tier}, {load.batch} rows, {load.context} tokens, steps"
        return measure_in_turns(
            pairs, start, feed, warmup=warmup, rounds=self._settings.rounds, timeline=timeline,
            progress=lambda done, total: self._report(what, done, total),
        )  # fmt: skip

    def _record(
        self, cell: ValidationCell, load: CpuLoad, pair: Combination, samples: Samples, spans: Samples | None,
        profile: Profile,
    ) -> Record:  # fmt: skip
        timeline = timeline_facts = None
        if spans is not None:
            timeline_facts = CompactFacts.of_steps(spans.facts)
            timeline = self._folder.write_timeline(cell, join_steps(f"measured {cell.key}", spans.timelines))
        shape = pair.shape
        measured = Measured(
            rounds_s=samples.rounds, facts=CompactFacts.of_steps(samples.facts), confirmed=len(samples.facts),
            block_bytes=2.0 * pair.spec.block * shape.head_dim * pair.model.dtype.itemsize,
            launch="operation by operation on the CPU", timeline=timeline, timeline_facts=timeline_facts,
        )  # fmt: skip
        record = Record(
            cell=cell, tier=load.tier, stratum=stratum_of(1.0), groups=load.groups, measured=measured,
            identity=self._told(cell),
        )  # fmt: skip
        return self._predicted(record, profile)

    def _predicted(self, record: Record, profile: Profile) -> Record:
        """Which side binds, and how long a step takes, as this profile tells it; kept."""
        measured, cell = record.measured, record.cell
        assert measured is not None
        planned = planned_here(cell, self._bench.decoder.shape, self._contenders[cell.selector].options, profile)
        ratio = _ratio(planned, measured)
        told = predict_record(attrs.evolve(record, ratio=ratio, stratum=stratum_of(ratio)), profile)
        self._folder.write(told)
        return told


def _ratio(planned: Planned, measured: Measured) -> float:
    """Time of the copies over the link, alone, over that of compute, alone."""
    copies_s, compute_s = balance_of(planned, measured.facts.step_facts())
    return copies_s / compute_s


def workbench(settings: CpuSettings, report: Report) -> Workbench:
    """Model and document; raises WeightsError or ConfigError where either will not do."""
    config = settings.config()
    report("loading the model", 0, 1)
    encoder: Any = None
    if settings.model == TINY:
        model = synthetic_model(TINY_SHAPE, device="cpu", dtype=torch.float32)
        reading = random_reading(settings.tokens, TINY_SHAPE.vocab)
    else:
        model = load_model(settings.model)
        encoder = model.tokenizer
        if encoder is None:
            raise ConfigError(f"model={settings.model!r} has no tokenizer; add its tokenizer.json to the directory")
        reading = read(
            encoder, path=None, limit=settings.tokens, context=model.decoder.shape.context,
            least=config.wanted_tokens, filler_tokens=0,
        )  # fmt: skip
    return Workbench(config=config, decoder=model.decoder, encoder=encoder, reading=reading, progress=report)


def random_reading(tokens: int, vocab: int) -> Reading:
    """A document without a meaning, for a model without one."""
    ids: Sequence[int] = np.random.default_rng(0).integers(0, vocab, tokens).tolist()
    return Reading(name="random ids", sha256="", opening="", tokens=tuple(ids), total=tokens, filler=())
