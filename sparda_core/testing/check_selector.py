"""check_selector: every law of selectors, tried on one, with the smallest example that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.registry import SELECTORS
from sparda_core.runtimes.threads import ComputeThreads
from sparda_core.selector import Selector
from sparda_core.shapes import check_integer
from sparda_core.testing.law import Law, LawBroken, Verdict, chosen_laws, told
from sparda_core.testing.laws_of_choice import CHOICE_LAWS
from sparda_core.testing.laws_of_declaration import DECLARATION_LAWS
from sparda_core.testing.laws_of_density import DENSITY_LAWS
from sparda_core.testing.laws_of_device import DEVICE_LAWS, require_runnable
from sparda_core.testing.laws_of_rows import ROW_LAWS
from sparda_core.testing.laws_of_sameness import SAMENESS_LAWS
from sparda_core.testing.laws_of_scores import SCORE_LAWS
from sparda_core.testing.scene import Scene, scenes
from sparda_core.testing.searching import first_failure
from sparda_core.testing.trial import Given, Reference, Trial

#: Every law, in the order in which they are tried.
SELECTOR_LAWS: tuple[Law[Trial], ...] = (
    *DECLARATION_LAWS, *CHOICE_LAWS, *SAMENESS_LAWS, *ROW_LAWS, *SCORE_LAWS, *DENSITY_LAWS, *DEVICE_LAWS,
)  # fmt: skip


def check_selector(
    selector: Given, *, laws: Sequence[str] | None = None, exempt: Mapping[str, str] | None = None,
    reference: Reference | None = None, scene: Scene | None = None, examples: int | None = None,
    device: str | None = None,
) -> Verdict:  # fmt: skip
    """Try every law of selectors on one; raises LawBroken with the smallest example that was found.

    selector   a declaration, a registered name, or a function that makes a declaration for a Scene
    laws       names of those to try; None: all of SELECTOR_LAWS
    exempt     law -> why this method need not keep it; the verdict repeats the reasons
    reference  scores of blocks by plain loops, Sight -> one a block; None: law "brute-force" is waived
    scene      the one scene to try; None: scenes are drawn by hypothesis, as many as the loaded profile says
    examples   how many scenes to draw instead
    device     where its GPU half is compared with its CPU half, "cuda" (or "cpu", under Triton's interpreter);
               None: law "device" is waived
    raises     LawBroken, an AssertionError; ConfigError where no scene suits the selector, where it or a law is
               unknown, where there is no such device, and where hypothesis is not installed
    """
    _check_asked(selector, scene, examples)
    given_exempt = dict(exempt or {})
    chosen = chosen_laws(SELECTOR_LAWS, laws, given_exempt)
    if device is not None:
        require_runnable(device)
    run = _Run(selector, chosen, reference, device)
    # Scenes are small: handing their work to a second thread takes longer than doing it.
    ComputeThreads(1).run(lambda: run.drawn(examples) if scene is None else run.only(scene))
    return run.verdict(given_exempt)


def _check_asked(selector: Given, scene: Scene | None, examples: int | None) -> None:
    if isinstance(selector, str):
        SELECTORS.factory(selector)  # raises with the nearest name
    elif not isinstance(selector, Selector) and not callable(selector):
        raise ConfigError(f"selector={selector!r} must be a Selector, a name, or a function that makes one for a Scene")
    if scene is not None and not isinstance(scene, Scene):
        raise ConfigError(f"scene={scene!r} must be a Scene; leave it out, and scenes are drawn")
    if examples is not None:
        check_integer("examples", examples, 1)


@attrs.define
class _Run:
    """One call: what was tried, what was waived, and the last failure."""

    given: Given
    laws: Sequence[Law[Trial]]
    reference: Reference | None
    device: str | None
    tried: set[str] = attrs.field(factory=set)
    waived: dict[str, str] = attrs.field(factory=dict)
    trials: int = 0
    failure: tuple[Law[Trial], Scene, BaseException] | None = None
    refused: str = ""

    def only(self, scene: Scene) -> None:
        trial = self.trial(scene)
        if (why := trial.refusal()) is not None:
            raise ConfigError(f"scene={scene} does not suit the selector: {why}")
        try:
            self.judge(trial)
        except Exception as wrong:
            raise self.broken() from wrong

    def drawn(self, examples: int | None) -> None:
        wrong = first_failure(self.try_scene, scenes(), examples=examples)
        if wrong is not None and self.failure is None:  # no law was asked: there was nothing to judge
            raise wrong
        if wrong is not None:
            raise self.broken() from wrong

    def try_scene(self, scene: Scene, reject: Callable[[], Any]) -> None:
        trial = self.trial(scene)
        if (why := trial.refusal()) is not None:
            self.refused = why
            reject()
        self.judge(trial)

    def trial(self, scene: Scene) -> Trial:
        return Trial(given=self.given, scene=scene, reference=self.reference, device=self.device)

    def judge(self, trial: Trial) -> None:
        self.trials += 1
        for law in self.laws:
            try:
                if (why := law.waived(trial)) is not None:
                    self.waived[law.name] = why
                    continue
                law.check(trial)
            except Exception as wrong:
                self.failure = (law, trial.scene, wrong)
                raise
            self.tried.add(law.name)

    def broken(self) -> LawBroken:
        assert self.failure is not None
        law, scene, wrong = self.failure
        named = self.given.name if isinstance(self.given, Selector) else self.given
        called = repr(self.given) if isinstance(self.given, str | Selector) else getattr(named, "__name__", repr(named))
        more = "" if self.reference is None else ", reference=..."
        more += "" if self.device is None else f", device={self.device!r}"
        return LawBroken(
            law=law.name, says=law.says, found=told(wrong), example=repr(scene),
            reproduce=f"check_selector({called}, laws=[{law.name!r}], scene={scene!r}{more})",
        )  # fmt: skip

    def verdict(self, exempt: Mapping[str, str]) -> Verdict:
        if not self.trials:
            raise ConfigError(f"selector={self.given!r}: no scene suits it; it said: {self.refused}")
        waived = {name: why for name, why in self.waived.items() if name not in self.tried}
        held = tuple(law.name for law in self.laws if law.name in self.tried)
        return Verdict(held=held, waived={**waived, **exempt}, trials=self.trials)
