"""Figures of the lookahead study: the gain over batch, machine and context, a panel a trace or link, a line a pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparda_core.whatif.figures import COLOURS, MARKERS, axis_label, new_figure
from sparda_core.whatif.frontier import Between, Pair, pairs
from sparda_core.whatif.grid import Axis
from sparda_core.whatif.lookahead import AHEAD, GENERATION, HEADLINE, LINK, MACHINE, PAYS, SAME, TRACE
from sparda_core.whatif.plots import title_of
from sparda_core.whatif.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What a figure is drawn over, and where the others are held.
OVER = {"batch": "lookahead", MACHINE: "lookahead-machines", "context": "lookahead-contexts"}
HELD = {MACHINE: HEADLINE, "context": 2**17, "batch": 16}


def lookahead_figures(study: Study) -> dict[str, Figure]:
    """One figure for each of OVER that has two values or more; dotted where lookahead begins to pay."""
    axes = {axis.name: axis for axis in study.grid.axes}
    wide = [name for name in OVER if name in axes and len(axes[name].labels) > 1]
    return {OVER[name]: _figure(study, axes, name) for name in wide}


def _figure(study: Study, axes: dict[str, Axis], over: str) -> Figure:
    panels = next((axes[name] for name in (TRACE, LINK, GENERATION) if name in axes), None)
    labels = panels.labels if panels is not None else (None,)
    others = [axis for axis in axes.values() if axis.name not in ("method", "pool", over) and axis is not panels]
    held = {axis.name: _held(axis) for axis in others}
    figure = new_figure(3.4 * len(labels) + 1.2, 4.4)
    drawn = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    found = pairs(study, Between(first={"method": SAME}, second={"method": AHEAD}))
    for at, label in zip(drawn, labels, strict=True):
        here = held | ({panels.name: label} if panels is not None else {})
        shown = [pair for pair in found if all(pair.given[key] == value for key, value in here.items())]
        _panel(at, shown, axes["pool"].labels, axes[over])
        at.set_title("" if panels is None else f"{axis_label(panels.name)}: {label}", fontsize=9)
    drawn[0].set_ylabel("times as many tokens/s as without lookahead")
    handles, names = drawn[0].get_legend_handles_labels()
    for at in drawn[1:]:  # a pool that only some traces know
        more = zip(*at.get_legend_handles_labels(), strict=True)
        handles, names = _joined(handles, names, more)
    figure.legend(handles, names, fontsize=8, title="slots", title_fontsize=8, loc="outside right center")
    figure.suptitle(title_of(study, held), fontsize=9)
    return figure


def _joined(handles: list[Any], names: list[str], more: Iterable[tuple[Any, str]]) -> tuple[list[Any], list[str]]:
    """The line at which lookahead pays comes last."""
    fresh = [(handle, name) for handle, name in more if name not in names]
    every = [*zip(handles[:-1], names[:-1], strict=True), *fresh, (handles[-1], names[-1])]
    return [handle for handle, _ in every], [name for _, name in every]


def _held(axis: Axis) -> Any:
    usual = HELD.get(axis.name)
    return usual if usual in axis.labels else axis.labels[0]


def _panel(at: Axes, shown: Sequence[Pair], pools: Sequence[str], over: Axis) -> None:
    places = {label: label if over.name == "batch" else place for place, label in enumerate(over.labels)}
    for turn, name in enumerate(pools):
        line = [
            (places[pair.given[over.name]], pair.speedup)
            for pair in shown
            if pair.given["pool"] == name and pair.speedup is not None
        ]
        if line:
            at.plot(
                *zip(*line, strict=True), color=COLOURS[turn], marker=MARKERS[turn], linewidth=1.6, markersize=5,
                label=name,
            )  # fmt: skip
    at.axhline(PAYS, color="black", linestyle=":", linewidth=1, label=f"pays: {PAYS:g} times")
    at.axhline(1, color="black", linewidth=0.8)
    if over.name == "batch":
        at.set_xscale("log", base=2)
    turned = 0 if over.numeric else 40
    at.set_xticks(list(places.values()), [_short(label) for label in places], rotation=turned, fontsize=8)
    at.set_xlabel("machine, by the speed of its link" if over.name == MACHINE else axis_label(over.name))
    at.grid(alpha=0.3)


def _short(label: Any) -> str:
    """A number of tokens in units of 1,024."""
    whole = isinstance(label, int) and label >= 1024 and label % 1024 == 0
    return f"{label // 1024}K" if whole else str(label)
