"""The main job: one document, every selector, every runtime that fits; measured here, predicted here and elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

import sparda_core
from sparda_core.bench.calibrate_cpu import Calibration, calibrate_cpu
from sparda_core.bench.config import CompareConfig
from sparda_core.bench.contenders import RUNTIME_NAMES, Contender, combine, contenders, refusals
from sparda_core.bench.judging import judge, judging_notes
from sparda_core.bench.parts import PartStore, to_plain
from sparda_core.bench.plot_timelines import plot_timelines
from sparda_core.bench.plots import plot_comparison, require_matplotlib
from sparda_core.bench.predicted import predict_gpus
from sparda_core.bench.provenance import busy_cores, provenance
from sparda_core.bench.report import CompareReport
from sparda_core.bench.text import Reading, read
from sparda_core.bench.timelines import timeline_from_plain
from sparda_core.bench.timing import choose_link, record_timelines, time_contender
from sparda_core.bench.workbench import BUSY_SHARE, FILLER_TOKENS, Progress, Workbench
from sparda_core.compose import make_selector
from sparda_core.errors import ConfigError
from sparda_core.locks import locked_folder
from sparda_core.models.load import load_model
from sparda_core.runtimes.session_options import compute_threads
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile, save_profile
from sparda_core.trace import Origin, TraceSource, write_trace

#: Steps behind the step time of a contender that does not lead, and of the leader over the unlimited link; rounds.
OTHER_STEPS, UNLIMITED_STEPS, SHORT_ROUNDS = 12, 12, 3


def run_compare(config: CompareConfig, *, progress: Progress | None = None) -> CompareReport:
    """Compare everything, and leave report.json, figures and traces in `config.out`.

    progress  called with (what is going on, done, total), often
    Finished parts are kept in the folder while it runs: after an interruption the same call goes on
    where it stopped. raises ConfigError or WeightsError before anything is written where the model,
    the text or the settings will not do.
    """
    say = progress or (lambda what, done, total: None)
    say("loading the model", 0, 1)
    model = load_model(config.model, forecast=config.forecast)
    if model.tokenizer is None:
        raise ConfigError(f"model={config.model!r} has no tokenizer; add its tokenizer.json to the directory")
    return compare_model(config, model.decoder, model.tokenizer, progress=say)


def compare_model(config: CompareConfig, decoder: Any, encoder: Any, *, progress: Progress) -> CompareReport:
    """The same with a model at hand: a decoder, and what encodes text for it."""
    require_matplotlib()
    reading = read(
        encoder, path=config.text, limit=config.token_limit, context=decoder.shape.context,
        least=config.wanted_tokens, filler_tokens=FILLER_TOKENS,
    )  # fmt: skip
    bench = Workbench(
        config=config, decoder=decoder, encoder=encoder, reading=reading, progress=progress, busy=busy_cores()
    )
    longest = max(len(reading.tokens), *(len(task.tokens) for task in bench.tasks))
    blocks = config.spec.block_count(longest)
    every = contenders(config, decoder.shape, blocks=blocks, has_forecast=decoder.has_forecast)
    with locked_folder(config.out):
        store = PartStore(config.out / "parts", key=config.key(reading.sha256, sparda_core.__version__))
        report = _Comparison(bench, every, store).run()
        store.clear()
    return report


class _Comparison:
    """The phases, in order. Every part of them is kept as soon as it is finished."""

    def __init__(self, bench: Workbench, every: Sequence[Contender], store: PartStore) -> None:
        self._bench, self._every, self._store = bench, list(every), store
        self._out = bench.config.out
        self._recording = self._out / "query-selections.npz"
        self._profile_path = self._out / "cpu-profile.toml"
        self._seconds: dict[str, float] = {}
        self._provenance = provenance() | {
            "threads": bench.config.threads or compute_threads(), "reading_threads": bench.reading_threads,
            "busy_cores_at_start": bench.busy,
        }  # fmt: skip

    @property
    def _leader(self) -> Contender:
        """The contender whose transfers are looked at closely: forecast, or the next best that knows early."""
        return next(c for label in ("forecast", "infinigen") for c in self._every if c.label == label)

    def run(self) -> CompareReport:
        bench, config = self._bench, self._bench.config
        refused = refusals(bench.decoder.shape, self._every, config, self._recording)
        quality = [self._part(f"quality {c.label}", self._judge, c) for c in self._every]
        profile = self._profile()
        link = self._part("link", choose_link, bench, self._leader)
        timing = self._timing(link["bytes_per_s"], profile, refused)
        timelines = self._part(
            "timelines", record_timelines, bench, self._leader, link_bytes_per_s=link["bytes_per_s"], profile=profile
        )
        gpus = self._part("gpus", lambda: list(predict_gpus()))
        report = CompareReport(
            config=config.to_plain(), provenance=self._provenance, text=_text(bench.reading), link=link,
            quality=quality, timing=timing, timelines=timelines, gpus=gpus, refused=refused, notes=self._notes(),
            phases_s=self._seconds, files={},
        )  # fmt: skip
        return self._leave(report)

    def _part(self, name: str, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def timed() -> dict[str, Any]:
            began = time.perf_counter()
            made = to_plain(make(*args, **options))
            return {"made": made, "seconds": time.perf_counter() - began}

        part = self._store.get(name, timed)
        self._seconds[name] = part["seconds"]
        return part["made"]

    def _judge(self, contender: Contender) -> dict[str, Any]:
        return judge(self._bench, contender, self._every[0], self._recording)

    def _profile(self) -> Profile:
        """The profile of this machine: measured once, read back in a run that goes on."""
        self._part("profile", self._calibrate)
        return load_profile(self._profile_path)

    def _calibrate(self) -> str:
        bench = self._bench
        tokens = bench.reading.tokens[:-1]
        last = len(tokens) - 8
        # A replay knows only the positions that were recorded, and costs what a window costs: a list is written.
        timed = [c for c in self._every if c.timed and not c.replays]
        calibration = Calibration(
            selectors=tuple(make_selector(bench.decoder, c.selector, **c.options) for c in timed),
            contexts=(last // 2, last), spec=bench.config.spec, steps=4, warmup=1,
        )  # fmt: skip
        profile = calibrate_cpu(
            bench.decoder, tokens, calibration, threads=bench.config.threads, snapshot=bench.document,
            report=bench.progress,
        )  # fmt: skip
        return str(save_profile(profile, self._profile_path))

    def _timing(self, link_bytes_per_s: float, profile: Profile, refused: dict[str, str]) -> list[dict[str, Any]]:
        config, rows = self._bench.config, []
        for contender in (c for c in self._every if c.timed):
            leads = contender is self._leader
            if contender.replays and self._shorter(OTHER_STEPS)[0] + config.warmup > self._recorded_steps:
                continue
            runtimes = [name for name in RUNTIME_NAMES if f"{contender.label} + {name}" not in refused]
            for link in (link_bytes_per_s, None) if leads else (link_bytes_per_s,):
                if leads and link is not None:
                    steps, rounds = config.timed_steps, config.rounds
                else:
                    steps, rounds = self._shorter(UNLIMITED_STEPS if leads else OTHER_STEPS)
                rows += self._part(
                    f"timing {contender.label} {'unlimited' if link is None else 'emulated'}",
                    time_contender, self._bench, contender, runtimes, steps=steps, rounds=rounds,
                    link_bytes_per_s=link, profile=profile,
                    options={"recording": self._recording} if contender.replays else {},
                )  # fmt: skip
        return rows

    def _shorter(self, steps: int) -> tuple[int, int]:
        """Steps and rounds of a measurement that need not be as long as the leader's."""
        config = self._bench.config
        if config.timed_steps <= steps:
            return config.timed_steps, config.rounds
        return steps, SHORT_ROUNDS

    @property
    def _recorded_steps(self) -> int:
        """Consecutive steps, up to the document's last, whose selections were recorded."""
        return self._bench.config.windows * self._bench.config.steps

    def _notes(self) -> list[str]:
        reading, notes = self._bench.reading, list(judging_notes(self._bench.tasks))
        if reading.total > len(reading.tokens):
            notes.append(f"the text was cut: {len(reading.tokens)} of its {reading.total} tokens were read")
        if self._shorter(OTHER_STEPS)[0] + self._bench.config.warmup > self._recorded_steps:
            notes.append(f"'replay' was not timed: only the last {self._recorded_steps} steps were recorded")
        if not self._bench.decoder.has_forecast:
            notes.append(
                "selector 'forecast' was left out: the model has no Forecast weights; make some with `sparda train`"
            )
        busy, cores = self._bench.busy, self._provenance["machine"]["cores"]
        if busy is not None and busy > BUSY_SHARE * cores:
            notes.append(f"other programs kept {busy:.1f} of {cores} cores busy: read times with care")
        return notes

    def _leave(self, report: CompareReport) -> CompareReport:
        """Write the report and everything that lies beside it."""
        files = {
            "report": self._out / "report.json", "comparison": self._out / "comparison.png",
            "timeline": self._out / "timeline.png", "trace_measured": self._out / "trace-measured.json",
            "trace_predicted": self._out / "trace-predicted.json", "profile": self._profile_path,
            "recording": self._recording,
        }  # fmt: skip
        whole = attrs.evolve(report, files={name: str(path) for name, path in files.items()})
        self._bench.progress("writing results", 0, 1)
        plot_comparison(whole, files["comparison"])
        plot_timelines(whole, files["timeline"])
        for kind in ("measured", "predicted"):
            write_trace(files[f"trace_{kind}"], [self._source(whole, name, kind) for name in whole.timelines["runs"]])
        whole.save(files["report"])
        self._bench.progress("writing results", 1, 1)
        return whole

    def _source(self, report: CompareReport, runtime: str, kind: str) -> TraceSource:
        combination = combine(self._bench.decoder.shape, self._leader, runtime, self._bench.config)
        timeline = timeline_from_plain(report.timelines["runs"][runtime][kind])
        return TraceSource(timeline=timeline, plan=combination.plan(), origin=Origin(kind))


def _text(reading: Reading) -> dict[str, Any]:
    return {
        "name": reading.name, "sha256": reading.sha256, "opening": reading.opening, "tokens": len(reading.tokens),
        "total": reading.total,
    }  # fmt: skip
