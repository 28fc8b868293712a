"""Measuring cells on a GPU: one model, one piece of pinned memory and one process for all of them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
import torch

from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.clock import Clock, median
from sparda_core.bench.decode.fill import claim_rows, fill_random, warm_slots
from sparda_core.bench.decode.parts import Parts
from sparda_core.bench.decode.recorded_trace import recorded_trace
from sparda_core.bench.decode.store import Settings
from sparda_core.bench.decode.timeline import graph_timeline
from sparda_core.bench.decode.trace import BatchTrace, batch_trace
from sparda_core.bench.decode.traced import Traced
from sparda_core.bench.gpu_machine import gpu
from sparda_core.bench.provenance import provenance
from sparda_core.compose import Combination, compose
from sparda_core.errors import ConfigError
from sparda_core.models.model import Model
from sparda_core.models.synthetic import synthetic_forecast, synthetic_model
from sparda_core.registry import SELECTORS
from sparda_core.runtimes.gpu.pinning import pinned_empty
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.selector import Selector
from sparda_core.selectors.recording import load as load_recording
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.locality_file import load_locality
from sparda_core.trace import Origin, TraceSource

Report = Callable[[str, int, int], None]
#: Steps after the timed ones whose facts are read: misses of a step are their mean.
COUNTED = 8
#: Steps of a trace beyond those that are timed: first replays, counted steps, and those of the parts.
SPARE = 256
_GIB = 1 << 30


def machine_name() -> str:
    """The GPU that will measure; raises ConfigError without one."""
    found = gpu()
    if found is None:
        raise ConfigError("no CUDA device on this machine: `sparda bench decode` and `sparda validate` measure one; "
                          "`sparda predict --profile h200` predicts, and `sparda validate` with --device cpu or "
                          "--published needs none")  # fmt: skip
    return str(found["name"])


class Bench:
    """Measures cells, one after the other. Pinned memory is taken once, for the largest cell; there is one model at a
    time, made where a cell asks for another shape than the one before.
    """

    def __init__(
        self, settings: Settings, cells: Sequence[Cell], *, report: Report, tell: Callable[[str], object] | None = None,
        spare: int = SPARE, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        """Memory is taken at first need.

        tell    called with the plan of each cell's memory, a line, before any of it is taken
        spare   steps that a cell may make after the timed ones
        device  None: the CUDA device; on a CPU steps are issued one operation at a time, in float32
        """
        self._settings, self._report, self._tell = settings, report, tell
        self._locality: LocalityModel = load_locality(settings.locality)
        self._recording = None if settings.recording is None else load_recording(settings.recording)
        self._device, self._cells = device or torch.device("cuda"), tuple(cells)
        self._steps = settings.warmup + settings.steps + spare
        self._model: Model | None = None
        self._offloaded = [cell for cell in cells if cell.offloads]
        self._host: torch.Tensor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host = self._model = None

    def note(self, line: str) -> None:
        """Tell a line, where somebody listens."""
        if self._tell is not None:
            self._tell(line)

    def provenance(self) -> dict[str, Any]:
        """Where the rows come from; shape and cut are the first cell's, those of others stand under `others`."""
        first, *rest = dict.fromkeys((cell.shape, cell.model, cell.spec) for cell in self._cells)
        told = {"shape": attrs.asdict(first[1]), "spec": attrs.asdict(first[2])}
        if rest:
            told["others"] = {name: {"shape": attrs.asdict(m), "spec": attrs.asdict(s)} for name, m, s in rest}
        return {**provenance(), "gpu": gpu(), **told}

    def _model_of(self, cell: Cell) -> Model:
        contexts = (one.model.context for one in self._cells if one.shape == cell.shape)
        shape = attrs.evolve(cell.model, context=max(cell.model.context, *contexts))
        where: dict[str, Any] = {"device": self._device, "dtype": self._dtype, "seed": self._settings.seed}
        if self._model is None or self._model.shape != shape:
            self._model = None  # the old one goes first: there is no room for two
            gc.collect()
            torch.cuda.empty_cache()
            self._model = synthetic_model(shape, **where)
        if cell.lead == 1:
            return self._model
        forecast = synthetic_forecast(shape, lead=cell.lead, **where)
        return attrs.evolve(self._model, decoder=self._model.decoder.with_forecast(forecast))

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Time a cell. Raises CapacityError where it does not fit."""
        with self._filled(cell) as session:
            return self._time(cell, session)

    def timeline(self, cell: Cell) -> TraceSource:
        """Spans of some steps of a cell; see `graph_timeline`, also for what it raises."""
        with self._filled(cell) as session:
            self._warm(session)
            return TraceSource(
                timeline=graph_timeline(session), plan=session.plan, origin=Origin.MEASURED,
                notes={"cell": cell.key, **self.provenance()},
            )  # fmt: skip

    @contextlib.contextmanager
    def _filled(self, cell: Cell) -> Iterator[GpuSession]:
        with self.filled(cell, self.trace(cell)) as session:
            yield session

    def trace(self, cell: Cell) -> BatchTrace:
        """What the rows of a cell select, for every step that it may make."""
        load: dict[str, Any] = {"shape": cell.model, "spec": cell.spec, "batch": cell.batch, "context": cell.context}
        if self._recording is not None and cell.offloads:
            return recorded_trace(self._recording, steps=self._steps, **load)
        locality = attrs.evolve(self._locality, churn=cell.churn)
        return batch_trace(locality, steps=self._steps, seed=self._settings.seed, **load)

    @contextlib.contextmanager
    def filled(self, cell: Cell, trace: BatchTrace) -> Iterator[GpuSession]:
        """A session whose rows have the cell's length, and slots as if its trace had long been played.

        Several may be open at once, as far as the device has memory for them: they read one piece of pinned memory.
        """
        with self._open(cell, trace) as session:
            claim_rows(session, cell)
            fill_random(session, self._settings.seed)
            warm_slots(session, trace)
            yield session

    def device_bytes(self, cell: Cell) -> int:
        """Device memory that a cell takes besides the weights, its trace included."""
        planned = compose(cell.model, cell.selector, cell.runtime, spec=cell.spec, runtime_options=_runtime(cell))
        parts = planned.capacity(check=False, **self._options(cell)).device_parts()
        played = 4 * self._steps * cell.batch * cell.model.layers * cell.model.kv_heads * cell.spec.budget
        return sum(parts.values()) - parts["weights"] - parts["reserved"] + played

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    def _options(self, cell: Cell) -> dict[str, Any]:
        """Of the cell's session."""
        options: dict[str, Any] = {
            "places": cell.batch, "tokens": cell.context + self._steps, "host_dtype": cell.host_dtype,
            "copy_rule": cell.copies, "graph": cell.launches == "graph" and self._device.type == "cuda",
            "copy_launch": cell.copy_launch, "early": cell.early, "gpu_memory_bytes": self._gpu_memory(),
            "page_blocks": 16, "copy_ctas": cell.ctas,
            "copy_in_flight_bytes": None if cell.in_flight_kib is None else cell.in_flight_kib << 10,
        }  # fmt: skip
        return options

    @contextlib.contextmanager
    def _open(self, cell: Cell, trace: BatchTrace) -> Iterator[GpuSession]:
        options = self._options(cell)
        selector: str | Selector = cell.selector
        if cell.selector != "dense":
            early = {} if cell.lead == 1 else {"lead": cell.lead}
            selector = Traced(inner=SELECTORS.make(cell.selector, **early), trace=trace, before=trace.history)
        planned = compose(cell.model, selector, cell.runtime, spec=cell.spec, runtime_options=_runtime(cell))
        self.note(f"{cell.key}: {planned.capacity(check=False, **options).as_line()}\n")
        pair = attrs.evolve(planned, model=self._model_of(cell))
        host = self.host_memory() if cell.offloads else None
        try:
            with self._session(pair, **options, host_memory=host) as session:
                yield session
        finally:
            gc.collect()
            torch.cuda.empty_cache()

    def _session(self, pair: Combination, **options: Any) -> GpuSession:
        return pair.open_gpu(**options)

    def _gpu_memory(self) -> int | None:
        if self._device.type != "cuda":
            return None
        cap = self._settings.gpu_memory_gib
        total = torch.cuda.get_device_properties(self._device).total_memory
        return total if cap is None else min(total, int(cap * _GIB))

    def host_memory(self) -> torch.Tensor:
        """Pinned memory for the largest offloading cell, filled with random values; taken at first need."""
        if self._host is None:
            most = max(self._host_bytes(cell) for cell in self._offloaded)
            self._host = pinned_empty(most, progress=self._pinned)
            fill_pinned(self._host, self._device, self._settings.seed)
        return self._host

    def _pinned(self, done: int, total: int) -> None:
        self._report("pinned MiB", done >> 20, total >> 20)

    def _host_bytes(self, cell: Cell) -> int:
        """Room for a cell's host store: every layer offloaded, and a page more for each (row, head)."""
        width, shape, spec = 1 if cell.host_dtype == "fp8" else self._dtype.itemsize, cell.model, cell.spec
        blocks = spec.block_count(cell.context + self._steps) + 16
        layers = shape.layers - (0 if cell.selector in ("query", "nosa") else cell.lead)
        pairs = cell.batch * layers * shape.kv_heads
        return pairs * blocks * 2 * spec.block * shape.head_dim * width

    def _time(self, cell: Cell, session: GpuSession) -> dict[str, Any]:
        settings, clock, shape, spec = self._settings, Clock(session), cell.model, cell.spec
        self._warm(session)
        steps = clock.steps(settings.steps)
        misses = [int(facts.misses.sum()) for facts in self._counted(session)]
        selected = cell.batch * shape.layers * shape.kv_heads * spec.budget
        moved = sum(misses) / len(misses)
        block_bytes = 2 * spec.block * shape.head_dim * (1 if cell.host_dtype == "fp8" else 2)
        parts = Parts(session, clock)
        return {
            "step_s": median(steps), "step_p10_s": _quantile(steps, 0.1), "step_p90_s": _quantile(steps, 0.9),
            "steps": len(steps), "misses": moved, "miss_share": moved / selected, "moved_bytes": moved * block_bytes,
            **parts.measure(whole=cell.told_apart), "launch": session.describe()["steps"], **_memory(session),
        }  # fmt: skip

    def _warm(self, session: GpuSession) -> None:
        session.run(1, dict.fromkeys(session.rows, 1))
        for _ in range(self._settings.warmup - 1):
            session.run(1)

    def _counted(self, session: GpuSession) -> Iterator[Any]:
        for _ in range(COUNTED):
            session.run(1)
            yield session.last_facts()


def _runtime(cell: Cell) -> dict[str, Any]:
    """Options of the cell's runtime."""
    if not cell.offloads:
        return {}
    return {"slots": round(cell.slots * cell.spec.budget), "policy": cell.policy, "engine": cell.engine}


def _memory(session: GpuSession) -> dict[str, Any]:
    """Planned and allocated bytes of the host store; what the session's parts take of the device."""
    tiers, plan = session.machinery.tiers, session.machinery.capacity
    allocated = tiers.allocated()
    return {
        "host_planned_bytes": plan.host_bytes, "host_allocated_bytes": allocated.pop("host", 0),
        "device_planned_bytes": plan.device_bytes, "device_parts_bytes": allocated,
    }  # fmt: skip


def fill_pinned(memory: torch.Tensor, device: torch.device, seed: int) -> None:
    """Random bfloat16 values: zeros would make copies and products faster than they are."""
    values = memory[: memory.numel() // 2 * 2].view(torch.bfloat16)
    piece = 1 << 28
    source = torch.Generator(device).manual_seed(seed)
    drawn = torch.randn(min(piece, values.numel()), generator=source, dtype=torch.bfloat16, device=device)
    for start in range(0, values.numel(), piece):
        part = values[start : start + piece]
        part.copy_(drawn[: part.numel()], non_blocking=True)
    if device.type == "cuda":
        torch.cuda.synchronize()


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

