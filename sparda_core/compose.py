"""A combination in three lines: a model, a selector and a runtime in; plan, generate, measure, predict out.

    model = load_model("smollm2")
    pair = compose(model, "forecast", "offload-prefetch", spec=BlockSpec(budget=16))
    pair.generate(model.tokenizer.encode("Once upon a time"), 32)

Given a ModelShape in place of a model, everything but running works, and torch is never loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.spans import Timeline
from sparda_core.work import WorkContext

if TYPE_CHECKING:
    from sparda_core.runtimes.gpu.capacity import CapacityPlan
    from sparda_core.runtimes.gpu.session import GpuSession
    from sparda_core.runtimes.row_session import RowSession
    from sparda_core.runtimes.session import CpuSession
    from sparda_core.runtimes.snapshot import RowSnapshot
    from sparda_core.simulator.predict import Prediction
    from sparda_core.simulator.profile import Profile

    _Kind = TypeVar("_Kind", bound=RowSession)

#: Least and most bytes of a value that is predicted with.
VALUE_BYTES = (0.5, 8)


@attrs.frozen(kw_only=True)
class Generated:
    """What `generate` made: new token ids, and the facts of every decode step."""

    tokens: tuple[int, ...]
    facts: tuple[StepFacts, ...]


@attrs.frozen(kw_only=True, eq=False)
class Measurement:
    """Wall-clock seconds and facts of consecutive decode steps; spans only where they were asked for."""

    step_s: tuple[float, ...]
    facts: tuple[StepFacts, ...]
    timelines: tuple[Timeline, ...]

    @property
    def median_step_s(self) -> float:
        """Median seconds of a step."""
        ordered = sorted(self.step_s)
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@attrs.frozen(kw_only=True, eq=False)
class Combination:
    """A selector and a runtime, checked against each other and against the model's shape."""

    model: Any
    shape: ModelShape
    selector: Selector
    runtime: Runtime
    spec: BlockSpec
    session_options: Mapping[str, Any]

    def plan(self) -> StepPlan:
        """The plan of one decode step."""
        return self.runtime.decode_plan(shape=self.shape, spec=self.spec, selector=self.selector)

    def prefill_plan(self, mode: str = "dense") -> StepPlan:
        """The plan of one prefill chunk; mode "dense" or "selector"."""
        return self.runtime.prefill_plan(shape=self.shape, spec=self.spec, selector=self.selector, mode=mode)

    @property
    def on_gpu(self) -> bool:
        """Whether the model lies on a CUDA device, where sessions are GPU sessions."""
        device = getattr(getattr(self.model, "decoder", self.model), "device", None)
        return getattr(device, "type", "cpu") == "cuda"

    def open(self, **options: Any) -> RowSession:
        """A session; options override those given to `compose`. Use it in a `with` statement.

        It is typed as what sessions have on every device; `open_cpu` and `open_gpu` give the rest by type, too.
        """
        if self.model is None:
            raise ConfigError(f"model is only a shape ({self.shape.name}); compose with a loaded model to run it")
        session: Any = self.runtime.open(
            self.model, selector=self.selector, spec=self.spec,
            **{**self._measured(), **self.session_options, **options},
        )  # fmt: skip
        return session  # type: ignore[no-any-return]

    def open_cpu(self, **options: Any) -> CpuSession:
        """As `open`, of a model on a CPU: a session with observers. Raises ConfigError for one on another device."""
        from sparda_core.runtimes.session import CpuSession

        return _of_kind(CpuSession, self.open(**options), "does not lie on the CPU: use open() or open_gpu()")

    def open_gpu(self, **options: Any) -> GpuSession:
        """As `open`, of a model on a CUDA device: a session with `run`, `draw` and `capacity` (docs/gpu.md).

        raises ConfigError for one on another device
        """
        from sparda_core.runtimes.gpu.session import GpuSession

        return _of_kind(
            GpuSession, self.open(**options), "does not lie on a CUDA device: load it with device='cuda', or use open()"
        )

    def capacity(self, *, value_bytes: int | None = None, check: bool = True, **options: Any) -> CapacityPlan:
        """What a GPU session of these options would take of device and host, byte by byte; allocates nothing.

        value_bytes  per weight, key and value; None: of the model's dtype, 2 where there is only a shape
        check        raise CapacityError, with the numbers and what would fit, where it does not; else only tell
        options      of GpuOptions; they override those given to `compose`
        """
        from sparda_core.runtimes.gpu.options import GpuOptions
        from sparda_core.runtimes.gpu.session_plan import session_plan

        dtype = getattr(getattr(self.model, "decoder", self.model), "dtype", None)
        return session_plan(
            shape=self.shape, spec=self.spec, selector=self.selector, runtime=self.runtime,
            options=GpuOptions.of(**{**self.session_options, **options}),
            value_bytes=(2 if dtype is None else dtype.itemsize) if value_bytes is None else value_bytes,
            forecast="forecast" in self.selector.needs, check=check,
        )  # fmt: skip

    def _measured(self) -> dict[str, Any]:
        """The copy kernel's size by the profile of the GPU that the model lies on."""
        if not self.on_gpu:
            return {}
        import torch

        from sparda_core.runtimes.gpu.options import CopySize
        from sparda_core.simulator.copy_default import copy_default

        device = getattr(self.model, "decoder", self.model).device
        found = copy_default(torch.cuda.get_device_name(device))
        size = CopySize(ctas=found.ctas, in_flight_bytes=found.in_flight_bytes, source=found.source)
        return {"copy_default": size}

    def generate(
        self, ids: Sequence[int], max_new_tokens: int, *, temperature: float = 0.0, top_p: float = 1.0,
        seed: int = 0, stop: Collection[int] = (), mode: str = "dense",
        on_token: Callable[[int], None] | None = None,
    ) -> Generated:  # fmt: skip
        """Continue a prompt; greedy at temperature 0, else nucleus sampling.

        A GPU session draws on the device, as its `draw` does, with another random generator than a CPU's: greedy text
        is the same, sampled text is not. It takes memory for prompt and continuation, unless `tokens` was set.
        raises ConfigError where the prompt is empty or prompt and continuation exceed the model's context
        """
        _check_length(len(ids), max_new_tokens, self.shape)
        tokens: list[int] = []
        facts: list[StepFacts] = []
        room = {"tokens": len(ids) + max_new_tokens} if self.on_gpu and "tokens" not in self.session_options else {}
        with self.open(**room) as session:
            row = session.add()
            sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
            for token, met in (_drawn if session.draws else _sampled)(session, row, ids, mode, sampling):
                tokens.append(token)
                facts += [] if met is None else [met]
                if on_token is not None:
                    on_token(token)
                if len(tokens) == max_new_tokens or token in stop:
                    break
        return Generated(tokens=tuple(tokens), facts=tuple(facts))

    def measure(
        self, start: RowSnapshot | Sequence[int], tokens: Sequence[int], *, batch: int = 1, warmup: int = 4,
        timeline: bool = False, progress: Callable[[int], None] | None = None,
    ) -> Measurement:  # fmt: skip
        """Step time of teacher-forced decoding: one of `tokens` a step, the first `warmup` steps not counted.

        start  a prompt, or the snapshot of a row that has read one; `batch` rows are forked from it
        With `timeline` every span is recorded, which costs a little: quote step times without it.
        """
        check_integer("warmup", warmup, 0)
        check_integer("batch", batch, 1)
        if len(tokens) <= warmup:
            raise ConfigError(
                f"tokens has {len(tokens)} ids, which must be more than warmup={warmup}: give more, or lower warmup"
            )
        step_s, facts, timelines = [], [], []
        with self.open(timeline=timeline, **self._places(batch)) as session:
            _fill(session, start, batch)
            for i, token in enumerate(tokens):
                began = time.perf_counter()
                result = session.decode(dict.fromkeys(session.rows, token))
                took_s = time.perf_counter() - began
                if i >= warmup:
                    step_s.append(took_s)
                    facts.append(result.facts)
                    timelines += [result.timeline] if result.timeline is not None else []
                if progress is not None:
                    progress(i + 1)
        return Measurement(step_s=tuple(step_s), facts=tuple(facts), timelines=tuple(timelines))

    def _places(self, rows: int) -> dict[str, int]:
        """Sessions on a GPU take memory for their rows when they open."""
        return {"places": rows} if self.on_gpu else {}

    def predict(
        self, profile: Profile | str, *, facts: StepFacts | Sequence[StepFacts] | None = None, batch: int | None = None,
        context: int | None = None, churn: float | None = None, value_bytes: float | None = None,
    ) -> Prediction:  # fmt: skip
        """Step time on a machine that need not be here.

        Give recorded `facts` (of one step or several), or all of batch, context and churn.
        value_bytes  bytes per weight, key and value; None: 4 on a CPU profile, else 2
        """
        from sparda_core.simulator.predict import predict
        from sparda_core.simulator.profile_file import load_profile

        loaded = load_profile(profile) if isinstance(profile, str) else profile
        plan = self.plan()
        if facts is None:
            facts = self._steady(plan, batch, context, churn)
        context_of = self._work_context(loaded, value_bytes)
        return predict(plan, facts, context=context_of, selector=self.selector, profile=loaded)

    def predict_prefill(
        self, profile: Profile | str, *, tokens: int, chunk: int = 2048, batch: int = 1, mode: str = "dense",
        value_bytes: float | None = None,
    ) -> Prediction:  # fmt: skip
        """Time of reading a prompt on a machine that need not be here; a "step" of the result is a mean chunk.

        tokens, chunk  of each of `batch` rows, which go through the chunks together
        """
        from sparda_core.simulator.predict import predict
        from sparda_core.simulator.prefill_facts import prefill_facts
        from sparda_core.simulator.profile_file import load_profile

        loaded = load_profile(profile) if isinstance(profile, str) else profile
        slots = self.runtime.slot_count(self.spec) if self.runtime.offloads else 0
        facts = prefill_facts(
            self.shape, self.spec, tokens=tokens, chunk=chunk, batch=batch, mode=mode, slots=slots
        )  # fmt: skip
        context_of = self._work_context(loaded, value_bytes)
        return predict(self.prefill_plan(mode), facts, context=context_of, selector=self.selector, profile=loaded)

    def _work_context(self, profile: Profile, value_bytes: float | None) -> WorkContext:
        size = (4.0 if profile.device == "cpu" else 2.0) if value_bytes is None else value_bytes
        least, most = VALUE_BYTES
        if not least <= size <= most:
            raise ConfigError(f"value_bytes={value_bytes!r} must be between {least} and {most}, or None: the device's")
        return WorkContext(
            shape=self.shape, spec=self.spec, weight_bytes=size, kv_bytes=size, host_kv_bytes=size, entry_bytes=size,
            activation_bytes=size, forecast="forecast" in self.selector.needs,
            forecast_lead=self.selector.lead or 1,
        )  # fmt: skip

    def _steady(self, plan: StepPlan, batch: int | None, context: int | None, churn: float | None) -> StepFacts:
        if batch is None or context is None or churn is None:
            raise ConfigError(
                f"batch={batch}, context={context}, churn={churn}: give all three, or facts of recorded steps"
            )
        cut = self.selector.cut(self.spec, context)
        if cut != self.spec:
            given, wants = (f"budget={one.budget}, local={one.local}" for one in (self.spec, cut))
            raise ConfigError(
                f"selector={self.selector.name!r} cannot be predicted at context={context} under {given}; "
                f"compose it under {wants}"
            )
        return steady_facts(
            shape=self.shape, spec=self.spec, batch=batch, context=context, churn=churn,
            resident_layers=plan.resident_layers, slots=self.runtime.slot_count(self.spec),
        )  # fmt: skip


def compose(
    model: Any, selector: str | Selector = "forecast", runtime: str | Runtime = "offload-prefetch", *,
    spec: BlockSpec | None = None, selector_options: Mapping[str, Any] | None = None,
    runtime_options: Mapping[str, Any] | None = None, **session_options: Any,
) -> Combination:  # fmt: skip
    """Put a model (or a ModelShape), a selector and a runtime together.

    selector, runtime  registered names, or objects; options go to the factories of named ones, and are refused beside
                       objects. A named selector that needs Forecast weights takes the lead of the model's, unless its
                       options say otherwise
    spec               None: the default BlockSpec
    session_options    those of SessionOptions on a CPU (link_bytes_per_s, threads, page_blocks, ...), of GpuOptions
                       for a model on a CUDA device (places, tokens, host_dtype, ...); `open` checks them
    raises             UnknownNameError, CombinationError, ConfigError, before anything is allocated
    """
    shape = model if isinstance(model, ModelShape) else getattr(model, "shape", None)
    if not isinstance(shape, ModelShape):
        raise ConfigError(f"model={model!r} is neither a loaded model nor a ModelShape; load one with load_model")
    for name, asked, given in (("selector", selector, selector_options), ("runtime", runtime, runtime_options)):
        if given and not isinstance(asked, str):
            raise ConfigError(f"{name}_options={dict(given)} go to a {name} by name; set them on the object {asked!r}")
    chosen = make_selector(model, selector, **(selector_options or {})) if isinstance(selector, str) else selector
    where = RUNTIMES.make(runtime, **(runtime_options or {})) if isinstance(runtime, str) else runtime
    cut = BlockSpec() if spec is None else spec
    for name, part, kind in (("selector", chosen, Selector), ("runtime", where, Runtime), ("spec", cut, BlockSpec)):
        if not isinstance(part, kind):
            raise ConfigError(f"{name}={part!r} must be a {kind.__name__}" + " or a name" * (kind is not BlockSpec))
    where.check(chosen, shape, cut)
    return Combination(
        model=None if model is shape else model, shape=shape, selector=chosen, runtime=where, spec=cut,
        session_options=dict(session_options),
    )  # fmt: skip


def make_selector(model: Any, name: str, /, **options: Any) -> Selector:
    """A selector by name, as `model` (or a ModelShape) wants it: with the lead of its Forecast where it needs one.

    raises  UnknownNameError, ConfigError
    """
    chosen = SELECTORS.make(name, **options)
    trained = getattr(getattr(model, "decoder", model), "forecast_lead", None)
    if "forecast" in chosen.needs and "lead" not in options and trained not in (None, chosen.lead):
        return SELECTORS.make(name, **options, lead=trained)
    return chosen


def _of_kind(kind: type[_Kind], session: RowSession, why_not: str) -> _Kind:
    """The session, where it is of this kind; else it is closed and ConfigError raised."""
    if isinstance(session, kind):
        return session
    session.close()
    raise ConfigError(f"this model ({session.shape.name}) {why_not}")


#: A token, and what the step before it met; None after a prefill.
Steps = Iterator[tuple[int, StepFacts | None]]


def _sampled(session: Any, row: int, ids: Sequence[int], mode: str, sampling: dict[str, Any]) -> Steps:
    """Tokens of a prompt's continuation without end, chosen here from logits."""
    from sparda_core.models.sampling import Sampler

    sampler = Sampler(**sampling)
    logits, met = session.prefill(row, ids, mode=mode), None
    while True:
        token = sampler.choose(logits)
        yield token, met
        result = session.decode({row: token})
        logits, met = result.logits[0], result.facts


def _drawn(session: Any, row: int, ids: Sequence[int], mode: str, sampling: dict[str, Any]) -> Steps:
    """The same where the session draws: a step leaves one token to read, not its logits."""
    from sparda_core.models.sampling import check_logits

    session.set_sampling(row, **sampling)
    check_logits(session.prefill(row, ids, mode=mode))
    met = None
    while True:
        yield session.tokens()[row], met
        session.run(1)
        met = session.last_facts()


def _fill(session: RowSession, start: Any, batch: int) -> None:
    from sparda_core.runtimes.snapshot import RowSnapshot

    if isinstance(start, RowSnapshot):
        row = session.adopt(start)
    else:
        row = session.add()
        session.prefill(row, start)
    for _ in range(batch - 1):
        session.fork(row)


def _check_length(prompt: int, new: int, shape: ModelShape) -> None:
    if not prompt:
        raise ConfigError("prompt is empty; give at least one token")
    check_integer("max_new_tokens", new, 1)
    if prompt + new > shape.context:
        raise ConfigError(
            f"prompt of {prompt} tokens + max_new_tokens={new} exceeds the model's context of {shape.context}: "
            "shorten one of them (--max-tokens cuts a text)"
        )
