"""Every registered selector in its forms, as check_selector takes them; and references for those that have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sparda_core.registry import SELECTORS
from sparda_core.selectors.observer import SelectionObserver
from sparda_core.selectors.query import Query
from sparda_core.testing import Scene, Sight, Trial
from sparda_core.testing.trial import Given, Reference
from tests.selectors import brute

#: Label -> registered name and options, or a function of the scene for `replay`.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "query": ("query", {}),
    "infinigen-token": ("infinigen", {"channels": 2, "calibration_tokens": 40}),
    "infinigen-whole": ("infinigen", {"channels": None}),
    "infinigen-entry": ("infinigen", {"scoring": "entry-softmax"}),
    "infinigen-raw": ("infinigen", {"scoring": "entry-raw"}),
    "forecast": ("forecast", {}),
    "forecast-2": ("forecast", {"lead": 2}),
    "nosa": ("nosa", {"select_blocks": 2}),
    "nosa-forecast": ("nosa-forecast", {"select_blocks": 2}),
    "oracle": ("oracle", {}),
    "random": ("random", {"seed": 5}),
    "window": ("window", {}),
}

_ONE_TEXT = "a recording plays the rows that were recorded, in their order, at the positions that were recorded"
#: What a form need not keep, and why.
EXEMPT: dict[str, dict[str, str]] = {
    "replay": dict.fromkeys(
        ("neighbours", "order-of-rows", "fork", "crop", "retire", "inactive-rows", "dense-when-all-fits", "device"),
        _ONE_TEXT,
    ),
}


def _query(sight: Sight) -> list[float]:
    return brute.query_scores(sight.query, sight.keys, sight.position, sight.spec)


def _proxy(sight: Sight) -> list[float]:
    """In prefill and in its first layers InfiniGen goes by the true query."""
    if not sight.lead:
        return _query(sight)
    return brute.token_scores(sight.query, sight.keys, sight.position, sight.spec)


def _mass(sight: Sight) -> list[float]:
    return brute.mass(sight.query, sight.keys, sight.position, sight.spec)


REFERENCES: dict[str, Reference] = {
    "query": _query,
    "forecast": lambda sight: brute.dot_scores(sight.forecast, sight.keys, sight.position, sight.spec),
    "infinigen-whole": _proxy,
    "oracle": _mass,
}


def given(label: str) -> Given:
    """The declaration of a form."""
    name, options = FORMS[label]
    return SELECTORS.make(name, **options)


def replay_of(folder: Path) -> Given:
    """A function of a scene: `replay` of what `query` chose there."""

    def made(scene: Scene) -> Any:
        trial = Trial(given=Query(), scene=scene)
        recorded = trial.drive()
        rows = range(len(scene.tokens))
        observer = SelectionObserver(shape=trial.shape, spec=trial.spec, selector="query", rows=rows)
        for position in range(scene.last):
            at = [[position if position < scene.tokens[row] + scene.steps else -1] for row in rows]
            for layer in range(trial.shape.layers):
                view = recorded.world.view(rows, at, layer=layer)
                for kind in recorded.selector.operations(layer, view.phase, 0):
                    recorded.bound.run(kind, view)
                observer(view)
        path = folder / f"{np.random.default_rng().integers(2**62)}.npz"
        observer.recording().save(path)
        return SELECTORS.make("replay", path=path)

    return made
