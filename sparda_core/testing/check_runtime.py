"""check_runtime: any runtime under random operations, beside a model that keeps everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from sparda_core.compose import compose, make_selector
from sparda_core.errors import CombinationError, ConfigError
from sparda_core.models.model import Model
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtime import Runtime, Session
from sparda_core.runtimes.threads import ComputeThreads
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.testing.law import LawBroken, Verdict, told
from sparda_core.testing.laws_of_device import require_runnable
from sparda_core.testing.machine import MOST_ROWS, MOST_TOKENS, run_machine
from sparda_core.testing.runtime_laws import RUNTIME_LAWS, RuntimeBroken
from sparda_core.testing.scripted import Script, Scripted
from sparda_core.testing.shorten import shortened
from sparda_core.testing.stage import Stage, Step

#: The model, and its cut, of every story: small enough for a model without a cache to follow every step.
STAGE_SHAPE = ModelShape(
    name="stage", layers=4, hidden=24, ffn=32, q_heads=6, kv_heads=2, head_dim=4, vocab=23, context=4096
)
STAGE_SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)
#: On a GPU: heads that its kernels take, and what a budget above the first one makes room for.
GPU_SHAPE = attrs.evolve(STAGE_SHAPE, layers=3, hidden=32, q_heads=4, head_dim=32, context=256)
GPU_SPEC = attrs.evolve(STAGE_SPEC, block=16, window=8, stride=4)
_MOST_BUDGET = 8
#: Options without which a selector does not serve so small a model.
_OPTIONS: dict[str, dict[str, Any]] = {
    "infinigen": {"channels": 2}, "nosa": {"select_blocks": 2}, "nosa-forecast": {"select_blocks": 2},
}  # fmt: skip


def check_runtime(
    runtime: str | Runtime | Callable[[], Runtime], *, selector: str | Selector = "scripted",
    story: Sequence[Step] | None = None, examples: int | None = None, steps: int | None = None,
    session_options: Mapping[str, Any] | None = None, device: str = "cpu",
) -> Verdict:  # fmt: skip
    """Drive a runtime through random operations; raises LawBroken with the shortest story that breaks a law.

    runtime          a declaration, a registered name, or a function that makes one. What its rows answer is held to a
                     model without a cache that attends to the blocks which `resident` selects; what CPU sessions of
                     this package keep is looked at, too
    selector         "scripted" selects anything at all; or a registered name, or a declaration
    story            operations to play, as a LawBroken tells them; None: stories are drawn by hypothesis
    examples, steps  stories to try and operations in each; None: as the loaded profile says
    session_options  for the sessions of the runtime
    device           "cuda": sessions on a GPU, in float32. `scripted` has no GPU half: name another selector
    raises           LawBroken, an AssertionError; CombinationError where the two cannot be combined; ConfigError where
                     hypothesis is not installed
    """
    declared = _declared(runtime)
    for name, count in (("examples", examples), ("steps", steps)):
        if count is not None:
            check_integer(name, count, 1)
    judged = _Judged(declared, selector, dict(session_options or {}), device)
    failed = ComputeThreads(1).run(
        lambda: judged.drawn(examples, steps) if story is None else judged.played(story)
    )  # fmt: skip
    if failed is not None:
        raise judged.broken(*failed, runtime) from failed[1]
    waived = {} if judged.looked_into else dict.fromkeys(_LOOKS_INSIDE, "its session is no CpuSession to look into")
    held = tuple(law for law in RUNTIME_LAWS if law not in waived)
    return Verdict(held=held, waived=waived, trials=judged.opened)


def _kind(wrong: BaseException) -> tuple[Any, ...]:
    """What must be the same of a failure for it to be the same failure."""
    return (type(wrong), getattr(wrong, "law", None), type(wrong.__cause__))


#: Laws that look at what a CPU session keeps.
_LOOKS_INSIDE = (
    "same-selection", "misses-are-transfers", "counted-once", "resident-when-attended", "one-slot-a-block",
    "slots-hold-copies", "tail-in-a-slot", "victims", "nothing-lost", "pages",
)  # fmt: skip


def _declared(runtime: str | Runtime | Callable[[], Runtime]) -> Runtime:
    made = RUNTIMES.make(runtime) if isinstance(runtime, str) else runtime
    if not isinstance(made, Runtime):
        if not callable(made):
            raise ConfigError(f"runtime={runtime!r} must be a Runtime, a name, or a function that makes one")
        made = made()
    if not isinstance(made, Runtime):
        raise ConfigError(f"runtime={runtime!r} made a {type(made).__name__}, not a Runtime")
    return made


@attrs.define
class _Judged:
    """What is judged, and how its stages are opened."""

    runtime: Runtime
    named: str | Selector
    session_options: dict[str, Any]
    device: str
    opened: int = 0
    looked_into: bool = False

    @property
    def on_cpu(self) -> bool:
        return torch.device(self.device).type == "cpu"

    @property
    def biased(self) -> bool:
        needs = self.named.needs if isinstance(self.named, Selector) else ()
        return "token_bias" in needs or (isinstance(self.named, str) and self.named.startswith("nosa"))

    @property
    def spec(self) -> BlockSpec:
        """The cut that the selector asks for on rows as long as they get."""
        given = STAGE_SPEC if self.on_cpu else GPU_SPEC
        if self.named == Scripted.name:
            return given
        declared = self.named if isinstance(self.named, Selector) else SELECTORS.make(self.named, **self._options)
        return declared.cut(given, MOST_TOKENS)

    @property
    def budgets(self) -> tuple[int, int]:
        """Least and most that a story sets; the one that there is, where the selector asked for it."""
        if self.spec not in (STAGE_SPEC, GPU_SPEC):
            return self.spec.budget, self.spec.budget
        most = self.runtime.slots or _MOST_BUDGET if self.runtime.offloads else _MOST_BUDGET
        # A choice in two stages has room for its first.
        return self.spec.forced + self.biased, min(_MOST_BUDGET, most)

    @property
    def appends(self) -> bool:
        """Whether stories append by choice. A GPU sums in another order, and many queries have many scores that are
        nearly equal: there only under what chooses without looking.
        """
        return self.on_cpu or self.named == "random"

    @property
    def _options(self) -> dict[str, Any]:
        return _OPTIONS.get(str(self.named), {})

    def open_stage(self) -> Stage:
        script, shape = Script(), attrs.evolve(STAGE_SHAPE if self.on_cpu else GPU_SHAPE, token_bias=self.biased)
        dtype = torch.float64 if self.on_cpu else torch.float32
        lead = (self.named.lead or 1) if isinstance(self.named, Selector) else 1
        model = tiny_model(shape, seed=1, dtype=dtype, lead=lead)
        chosen = self._selector(model, script)
        judge = compose(model, chosen, "resident", spec=self.spec, page_blocks=2)
        sessions: dict[str, Any] = {"judge": judge.open(threads=1)}
        try:
            if self.on_cpu:
                sessions["judged"] = self._here(model, chosen, self.runtime, self.session_options)
            else:
                sessions["twin"] = self._here(model, chosen, attrs.evolve(self.runtime, engine="thread"), {})
                sessions["judged"] = self._there(chosen, shape, lead)
        except BaseException:
            for session in sessions.values():
                session.close()
            raise
        self.opened += 1
        stage = Stage(
            model, sessions, spec=self.spec, tolerance=1e-9 if self.on_cpu else 5e-4, script=script,
            twins={} if self.on_cpu else {"judged": "twin"},
        )  # fmt: skip
        self.looked_into = "judged" in stage.watches
        return stage

    def _here(self, model: Model, chosen: Selector, runtime: Runtime, options: Mapping[str, Any]) -> Session:
        pair = compose(model, chosen, runtime, spec=self.spec, page_blocks=2)
        return pair.open(**{"threads": 1, **options})

    def _there(self, chosen: Selector, shape: ModelShape, lead: int) -> Session:
        require_runnable(self.device)
        model = tiny_model(shape, seed=1, dtype=torch.float32, lead=lead, device=self.device)
        pair = compose(model, chosen, self.runtime, spec=self.spec, page_blocks=2, places=MOST_ROWS, tokens=160)
        return pair.open(**self.session_options)

    def _selector(self, model: Model, script: Script) -> Selector:
        if isinstance(self.named, Selector):
            return self.named
        if self.named == Scripted.name:
            if not self.on_cpu:
                raise CombinationError(
                    selector=self.named, runtime=self.runtime.name, reason="it has no GPU half",
                    nearest="selector 'random', which looks at no state either",
                )  # fmt: skip
            return Scripted(script=script)
        return make_selector(model, self.named, **self._options)

    def played(self, story: Sequence[Step]) -> tuple[Stage, BaseException] | None:
        """The stage of a story, and what broke there; None where nothing did."""
        stage = self.open_stage()
        try:
            stage.play(story)
        except Exception as wrong:  # noqa: BLE001 - whatever a session raises
            return stage, wrong
        finally:
            stage.close()
        return None

    def drawn(self, examples: int | None, steps: int | None) -> tuple[Stage, BaseException] | None:
        """As `played`, of stories that hypothesis draws: the shortest failure found."""
        found = run_machine(
            self.open_stage, budgets=self.budgets, examples=examples, steps=steps, appends=self.appends
        )
        return None if found is None else self.shortest(*found)

    def shortest(self, stage: Stage, wrong: BaseException) -> tuple[Stage, BaseException]:
        """The same failure, told by a shorter story."""

        def same(candidate: Sequence[Step]) -> bool:
            again = self.played(candidate)
            return again is not None and _kind(again[1]) == _kind(wrong) and again[0].story[-1][0] == stage.story[-1][0]

        again = self.played(shortened(stage.story, same))
        return (stage, wrong) if again is None else again

    def broken(self, stage: Stage, wrong: BaseException, runtime: Any) -> LawBroken:
        law = wrong.law if isinstance(wrong, RuntimeBroken) else "no-error"
        story = "[" + ", ".join(repr(step) for step in stage.story) + "]"
        called = repr(runtime) if isinstance(runtime, str | Runtime) else getattr(runtime, "__name__", repr(runtime))
        more = "" if self.named == Scripted.name else f", selector={self.named!r}"
        more += f", session_options={self.session_options}" if self.session_options else ""
        more += "" if self.on_cpu else f", device={self.device!r}"
        return LawBroken(
            law=law, says=RUNTIME_LAWS[law], found=told(wrong), example=story,
            reproduce=f"check_runtime({called}{more}, story={story})",
        )  # fmt: skip
