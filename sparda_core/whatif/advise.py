"""Advise: which selector, runtime, slots and engine serve a model on a machine best, and whether offloading pays."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.shapes import check_integer
from sparda_core.whatif.explain import values_now
from sparda_core.whatif.nearest import Turn, nearest_turn
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.search import LOCALITY, Choices, Found, Option, Report, option_of, search

#: Options this close in tokens per second are level: the simpler one is named.
TIE = 0.005
#: Knobs for which it is asked where the advice would flip.
FLIPS = ("link_gb_s", "churn")


@attrs.frozen(kw_only=True)
class Target:
    """What is asked for: rows decoded together, or tokens per second, or neither: the most tokens per second."""

    batch: int | None = None
    tokens_per_s: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.batch is not None and self.tokens_per_s is not None:
            raise ConfigError(f"batch={self.batch} and tokens_per_s={self.tokens_per_s} are two targets; give one")
        if self.batch is not None:
            check_integer("batch", self.batch, 1)
        if self.tokens_per_s is not None and not 0 < self.tokens_per_s < math.inf:
            raise ConfigError(f"tokens_per_s={self.tokens_per_s} must be finite and > 0")

    @property
    def given(self) -> bool:
        """Whether anything in particular is asked for."""
        return self.batch is not None or self.tokens_per_s is not None

    def met(self, option: Option) -> bool:
        """Whether an option gives what is asked for."""
        if self.tokens_per_s is not None:
            return option.tokens_per_s >= self.tokens_per_s
        return self.batch is None or option.scenario.batch >= self.batch

    def margin(self, one: Option, other: Option) -> float:
        """How much faster `one` is: in tokens per second, or in step time where both reach the tokens asked for."""
        if self.tokens_per_s is not None and self.met(one) and self.met(other):
            return other.step_s / one.step_s - 1
        return one.tokens_per_s / other.tokens_per_s - 1

    def choose(self, options: Iterable[Option]) -> Option:
        """The fastest; where tokens per second are asked for, the shortest step of those that reach them.

        Of options within TIE of it, the one that takes the least memory, rows and CTAs.
        """
        every = list(options)
        if self.tokens_per_s is not None:
            every = [one for one in every if self.met(one)] or every
        top = functools.reduce(lambda best, one: one if self.margin(one, best) > 0 else best, every)
        level = [one for one in every if self.margin(top, one) <= TIE]
        return min(level, key=lambda one: (
            one.device_bytes + one.host_bytes, one.scenario.batch, one.scenario.ctas, one.step_s, one.pair,
            str(one.scenario.engine),
        ))  # fmt: skip


@attrs.frozen(kw_only=True)
class Advice:
    """What to run. Margins say how much faster: 0.1 means 10 % more tokens per second (see Target.margin).

    best        the recommendation; None where nothing fits with one row, and `problem` says why
    resident    the best one that keeps everything on the device, at the batch at which it is best
    offload     the best one that does not
    runner_up   the best of all other pairs of selector and runtime, resident ones included
    flips       per knob, the nearest value at which another pair of those compared, as set here, would win
    compared    the best option of each pair, fastest first
    """

    target: Target
    best: Option | None = None
    resident: Option | None = None
    offload: Option | None = None
    runner_up: Option | None = None
    problem: str | None = None
    flips: tuple[Turn, ...] = ()
    compared: tuple[Option, ...] = ()
    found: Found

    @property
    def feasible(self) -> bool:
        """Whether anything fits."""
        return self.best is not None

    @property
    def met(self) -> bool:
        """Whether the recommendation gives what was asked for."""
        return self.best is not None and self.target.met(self.best)

    @property
    def pays(self) -> bool:
        """Whether offloading is faster than staying on the device, by more than TIE; true where only it fits."""
        margin = self.over_resident
        return self.offload is not None if margin is None else margin > TIE

    @property
    def over_resident(self) -> float | None:
        """Margin of the best offloading option over the best resident one; negative where resident is faster."""
        return self._margin(self.offload, self.resident)

    @property
    def over_runner_up(self) -> float | None:
        """Margin of the recommendation over the runner-up."""
        return self._margin(self.best, self.runner_up)

    def _margin(self, one: Option | None, other: Option | None) -> float | None:
        return None if one is None or other is None else self.target.margin(one, other)


def advise(
    base: Scenario | None = None, *, batch: int | None = None, tokens_per_s: float | None = None,
    choices: Choices | None = None, report: Report | None = None,
) -> Advice:  # fmt: skip
    """Search selector x runtime x slots x engine x CTAs for the load and machine of `base`.

    base          None: the default scenario with the locality LOCALITY. Knobs that are searched are ignored
    batch         rows to decode together; None: as many as serve best
    tokens_per_s  a target: each option takes the smallest batch that reaches it
    report        called with (what, done, total) as it goes on
    Compares time at equal budget, never quality.
    Raises ConfigError for what no combination can be asked; what does not fit is an answer.
    """
    base, choices = base or Scenario(locality=LOCALITY), choices or Choices()
    target = Target(batch=batch, tokens_per_s=tokens_per_s)
    if base.phase != "decode":
        raise ConfigError(f"phase={base.phase!r}: advice is for decoding; use phase='decode'")
    _check(choices, base.machine().engines)
    base.churn_share()  # reads the locality: a wrong name is nobody's refusal
    report = report or (lambda *_: None)
    found = search(base, choices, batch=batch, least=tokens_per_s, report=report)
    if not found.options:
        return Advice(target=target, problem=_nothing(found), found=found)
    pairs: dict[str, list[Option]] = {}
    for option in found.options:
        pairs.setdefault(option.pair, []).append(option)
    each = [target.choose(options) for options in pairs.values()]
    best = target.choose(each)
    return Advice(
        target=target, best=best,
        resident=_some(target, [one for one in each if one.scenario.runtime == "resident"]),
        offload=_some(target, [one for one in each if one.scenario.runtime != "resident"]),
        runner_up=_some(target, [one for one in each if one.pair != best.pair]),
        flips=_flips(target, best, each, report), found=found,
        compared=tuple(sorted(each, key=lambda one: (one is not best, -one.tokens_per_s, one.pair))),
    )  # fmt: skip


def _some(target: Target, options: list[Option]) -> Option | None:
    return target.choose(options) if options else None


def _check(choices: Choices, engines: tuple[str, ...]) -> None:
    for what, names, known in (
        ("selector", choices.selectors, SELECTORS.names()), ("runtime", choices.runtimes, RUNTIMES.names()),
        ("engine", choices.engines or engines, engines),
    ):  # fmt: skip
        for name in _some_of(what, names):
            if name not in known:
                raise UnknownNameError(what=what, name=str(name), known=known)
    for knob, values in (("slot_factor", choices.slot_factors), ("ctas", choices.ctas)):
        for value in _some_of(knob, values):
            Scenario.knobs()[knob].check(value)


def _some_of(what: str, values: Sequence[Any]) -> Sequence[Any]:
    if not values:
        raise ConfigError(f"no {what} to choose from; name at least one")
    return values


def _nothing(found: Found) -> str:
    """The shortage of the combination that comes closest; raises ConfigError where memory is not what stops them."""
    if not found.short:
        why, _ = collections.Counter(found.refused.values()).most_common(1)[0]
        raise ConfigError(f"no combination can be predicted: {why}")
    name, least = min(found.short.items(), key=lambda item: item[1].need / max(item[1].free, 1))
    return f"not even one row fits. Closest is {name}: {least}"


def _flips(target: Target, best: Option, each: list[Option], report: Report) -> tuple[Turn, ...]:
    # A resident option has neither link nor churn; its rivals have both.
    offloading = next((one for one in each if one.scenario.runtime != "resident"), None)
    if offloading is None or len(each) < 2:
        return ()
    at, flips = values_now(offloading.scenario), []
    knobs = [knob for knob in FLIPS if knob in at]
    for done, knob in enumerate(knobs, start=1):
        flips.append(nearest_turn(knob, at[knob], best.pair, _winner(target, best, each, knob)))
        report("flips", done, len(knobs))
    return tuple(flips)


def _winner(target: Target, best: Option, each: list[Option], knob: str) -> Callable[[float], str]:
    """Which pair wins at a value of a knob: the recommendation, until another is ahead by more than TIE."""

    def answer(value: float) -> str:
        turned = [_turned(one, knob, value) for one in each]
        top = target.choose(turned)
        here = next(one for one in turned if one.pair == best.pair)
        ahead = target.met(top) > target.met(here) or target.margin(top, here) > TIE
        return top.pair if ahead else best.pair

    return answer


def _turned(option: Option, knob: str, value: float) -> Option:
    """The option with a knob at another value; on the device alone neither link nor churn is felt."""
    if option.scenario.runtime == "resident":
        return option
    return option_of(option.scenario.turned(**{knob: value}))
