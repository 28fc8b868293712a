"""The table of cases: every registered selector, with the options and leads under which its laws are checked."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparda_core.registry import SELECTORS
from sparda_core.selector import Selector
from sparda_core.selectors.observer import SelectionObserver
from sparda_core.selectors.query import Query
from sparda_core.selectors.recording import Recording
from sparda_core.shapes import BlockSpec
from tests.selectors.world import SHAPE, SPEC, Drive, World

ROOT = Path(__file__).parents[2]

#: name -> the forms of it, each (label, options, lead where the selector takes any).
CASES: dict[str, tuple[tuple[str, dict[str, Any], int | None], ...]] = {
    "dense": (("early", {}, 1), ("own", {}, 0)),
    "query": (("own", {}, None),),
    "infinigen": (
        ("token", {"channels": 3, "calibration_tokens": 40}, None),
        ("token-whole", {"channels": None}, None),
        ("entry-raw", {"scoring": "entry-raw"}, None),
        ("entry-softmax", {"scoring": "entry-softmax"}, None),
    ),
    "forecast": (("early", {}, None), ("two-early", {"lead": 2}, None)),
    "nosa": (("own", {"select_blocks": 2}, None), ("whole", {"select_blocks": 3}, None)),
    "nosa-forecast": (("early", {"select_blocks": 2}, None),),
    "oracle": (("own", {}, None),),
    "random": (("early", {"seed": 5}, 1), ("own", {}, 0), ("two-early", {}, 2)),
    "window": (("early", {}, 1), ("own", {}, 0)),
    "replay": (("early", {}, 1), ("own", {}, 0)),
}
FORMS = [(name, label) for name, forms in CASES.items() for label, _, _ in forms]


def entry_points() -> dict[str, str]:
    """Selectors that this project registers: name -> module:factory."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        points: dict[str, str] = tomllib.load(file)["project"]["entry-points"]["sparda.selectors"]
    return points


def factory(name: str) -> Any:
    """The factory behind a registered name, whether or not the distribution is installed."""
    if name in SELECTORS.names():
        return SELECTORS.factory(name)
    module, _, attribute = entry_points()[name].partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def spec_for(name: str, spec: BlockSpec = SPEC) -> BlockSpec:
    """The spec under which a selector's laws are checked: `dense` must hold every block."""
    return spec.with_budget(24) if name == "dense" else spec


def make(name: str, label: str, tmp_path: Path) -> tuple[Selector, int | None]:
    """One form of a selector, and its lead; `replay` plays what `query` chose in the default world."""
    options, lead = next((options, lead) for found, options, lead in CASES[name] if found == label)
    if name == "replay":
        options = {"path": tmp_path / "query.npz"}
        recorded_query().save(options["path"])
    return factory(name)(**options), lead


@functools.cache
def recorded_query() -> Recording:
    """Selections of `query` at positions 0 .. 189 of the default world's texts."""
    return record_query(World.random(), texts=(0, 1, 2), start=0, stop=190)


def record_query(world: World, *, texts: Sequence[int], start: int, stop: int) -> Recording:
    """Selections of `query` at consecutive positions of some texts."""
    drive = Drive(Query(), world)
    observer = SelectionObserver(shape=SHAPE, spec=world.spec, selector="query", rows=texts)
    for position in range(start, stop):
        for layer in range(SHAPE.layers):
            view = world.view(texts, [[position]] * len(texts), layer=layer)
            for kind in drive.selector.operations(layer, view.phase, 0):
                drive.bound.run(kind, view)
            observer(view)
    return observer.recording()
