"""`sparda methods`: what is installed, and which selector fits which runtime."""

from __future__ import annotations

import argparse
from typing import Any

import attrs

from sparda_core.cli.options import add_json, add_shape, add_spec, spec_of
from sparda_core.cli.screen import show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.registry import RUNTIMES, SELECTORS, Registry
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape, named_shape

#: A pair that works, one that cannot be tried, and one that does not work: the reason stands beside it.
YES, UNTRIED, NO = "yes", "?", "no"


@attrs.frozen(kw_only=True)
class Found:
    """What became of one registered name: an object, or why there is none.

    told  what a method that wants options says of itself
    """

    name: str
    made: Any = None
    why: str = ""
    told: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda methods`."""
    add_shape(parser, default="smollm2-135m")
    add_spec(parser, BlockSpec())
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is registered and which pairs fit; a method that cannot be loaded is listed with the reason."""
    shape, spec = named_shape(args.shape), spec_of(args)
    selectors, runtimes = found(SELECTORS), found(RUNTIMES)
    pairs = [pair(s, r, shape, spec) for s in selectors for r in runtimes]
    if args.json:
        show_json(_document(selectors, runtimes, pairs, shape, spec))
        return 0
    show_table("Selectors: which blocks", ("name", "lead", "needs", "about"), map(_selector_row, selectors))
    show_table("Runtimes: where they live", ("name", "least lead", "offloads", "about"), map(_runtime_row, runtimes))
    width = len(runtimes)
    rows = [[s.name, *(p.fits for p in pairs[i * width : (i + 1) * width])] for i, s in enumerate(selectors)]
    title = f"Pairs that fit ({shape.name}, budget {spec.budget} of {spec.block}-token blocks)"
    show_table(title, ("selector", *(r.name for r in runtimes)), rows)
    refused = [(p.selector, p.runtime, p.reason) for p in pairs if p.fits == NO]
    if refused:
        show_table("Why not", ("selector", "runtime", "reason"), refused)
    return 0


def found(registry: Registry[Any]) -> list[Found]:
    """Every registered name, made with its default options; what cannot be made so is there with the reason."""
    return [_find(registry, name) for name in registry.names()]


def _find(registry: Registry[Any], name: str) -> Found:
    factory = None
    try:
        factory = registry.factory(name)
        return Found(name=name, made=registry.make(name))
    except (ConfigError, OSError) as wrong:
        return Found(name=name, why=str(wrong), told=_first_line(factory))


@attrs.frozen(kw_only=True)
class Pair:
    """Whether a selector and a runtime fit together, and why not."""

    selector: str
    runtime: str
    fits: str
    reason: str | None = None


def pair(selector: Found, runtime: Found, shape: ModelShape, spec: BlockSpec) -> Pair:
    """Ask the runtime; a half that could not be made leaves the pair untried."""
    names = {"selector": selector.name, "runtime": runtime.name}
    for half in (selector, runtime):
        if half.made is None:
            return Pair(**names, fits=UNTRIED, reason=half.why)
    try:
        runtime.made.check(selector.made, shape, spec)
    except ConfigError as wrong:
        return Pair(**names, fits=NO, reason=str(wrong))
    return Pair(**names, fits=YES)


def _about(half: Found) -> str:
    if half.made is None:
        return f"{half.told} Not made without options: {half.why}".lstrip() if half.told else half.why
    return _first_line(type(half.made))


def _first_line(factory: object) -> str:
    """Of its docstring; nothing where it has none."""
    text = "" if factory is None else (factory.__doc__ or "").strip()
    return text.splitlines()[0] if text else ""


def _lead(selector: Selector) -> int | str:
    return "any" if selector.lead is None else selector.lead


def _selector_row(half: Found) -> list[Any]:
    if half.made is None:
        return [half.name, None, None, _about(half)]
    needs = [*sorted(half.made.needs), *(["its cost is not counted"] if half.made.measuring else [])]
    return [half.name, str(_lead(half.made)), ", ".join(needs) or None, _about(half)]


def _runtime_row(half: Found) -> list[Any]:
    made: Runtime | None = half.made
    return [half.name, *((made.min_lead, made.offloads) if made else (None, None)), _about(half)]


def _document(
    selectors: list[Found], runtimes: list[Found], pairs: list[Pair], shape: ModelShape,
    spec: BlockSpec,
) -> dict[str, Any]:  # fmt: skip
    return {
        "shape": shape,
        "spec": spec,
        "selectors": [
            {"name": s.name, "about": _about(s)}
            | ({"lead": s.made.lead, "needs": s.made.needs, "measuring": s.made.measuring} if s.made else {})
            for s in selectors
        ],
        "runtimes": [
            {"name": r.name, "about": _about(r)}
            | ({"least_lead": r.made.min_lead, "offloads": r.made.offloads} if r.made else {})
            for r in runtimes
        ],
        "pairs": pairs,
    }
