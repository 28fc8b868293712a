"""Laws of the torch-free half: names, operations, work."""

from __future__ import annotations

import math

import attrs
import numpy as np

from sparda_core.errors import SpardaError
from sparda_core.facts import steady_facts
from sparda_core.plan import Op, Phase
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial
from sparda_core.work import Work, WorkContext


def _declaration(trial: Trial) -> None:
    chosen = trial.selector
    name = getattr(chosen, "name", None)
    require(isinstance(name, str) and name, f"name={name!r} must be a text")
    lead = chosen.lead
    known = lead is None or (isinstance(lead, int) and not isinstance(lead, bool) and lead >= 0)
    require(known, f"lead={lead!r} must be None or an integer >= 0")
    for phase in Phase:
        for early in {0, trial.lead}:
            kinds = chosen.operations(trial.shape.layers - 1, phase, early)
            texts = isinstance(kinds, tuple) and len(kinds) > 0 and all(isinstance(kind, str) for kind in kinds)
            require(texts, f"operations({phase}, lead {early}) is {kinds!r}, want a tuple of at least one kind")
            require(len(set(kinds)) == len(kinds), f"operations({phase}, lead {early}) names a kind twice: {kinds!r}")


def _work(trial: Trial) -> None:
    facts = steady_facts(
        shape=trial.shape, spec=trial.spec, batch=len(trial.scene.tokens), context=trial.scene.last, churn=0.1
    )
    context = WorkContext(
        shape=trial.shape, spec=trial.spec, forecast="forecast" in trial.selector.needs, forecast_lead=trial.lead or 1
    )
    for kind in trial.selector.operations(trial.shape.layers - 1, Phase.DECODE, trial.lead):
        work = trial.selector.work(Op(kind=kind, layer=trial.shape.layers - 1), facts, context)
        require(isinstance(work, Work), f"work of {kind!r} is a {type(work).__name__}, not Work")
        for name, value in _numbers(work).items():
            require(math.isfinite(value) and value >= 0, f"{name}={value} of {kind!r}, want a finite number >= 0")


def _numbers(work: Work) -> dict[str, float]:
    plain = attrs.asdict(work)
    return {name: float(value) for name, value in plain.items() if isinstance(value, int | float | np.number)}


def _undeclared(trial: Trial) -> None:
    driven = trial.drive()
    view = driven.world.view([0], [[trial.scene.tokens[0]]], layer=trial.shape.layers - 1)
    try:
        driven.bound.run("no such operation", view)
    except SpardaError:
        return
    raise AssertionError("run('no such operation') was not refused")


DECLARATION_LAWS: tuple[Law[Trial], ...] = (
    Law("declaration", "name, lead and operations are what a plan can be written from", _declaration),
    Law("work", "every operation states a finite amount of work, none of it negative", _work),
    Law("undeclared-kind", "an operation that was never declared is refused by an error of ours", _undeclared),
)
