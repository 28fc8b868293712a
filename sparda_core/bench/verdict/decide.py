"""Whether predictions decide as measurements do, group by group: order, regret, crossovers, slopes. Torch-free.

A group is the records that were measured for one question. What it asks is told by what varies among its cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.decisions import crossing, kendall_tau, log_slope, regret
from sparda_core.bench.verdict.judged import Judged, Verdict
from sparda_core.bench.verdict.limits import JudgedBar
from sparda_core.bench.verdict.table import Table, percent
from sparda_core.simulator.step_models import FULL

#: Options whose measured rates are within this share are level where the machine was not asked to repeat itself.
LEVEL = 0.01
#: Options whose predicted rates are within this share are level: `sparda advise` names the smallest of them.
ADVISED_LEVEL = 0.005
TAU, REGRET, CHOICE, GRID_STEPS, SLOPE = 0.9, 0.02, 0.02, 1.0, 0.1


@attrs.frozen(kw_only=True)
class Decision:
    """One question's answer.

    group    its name
    asks     "order", "settings", "crossover" or "slope"
    figures  name -> (figure, bound, whether the bound is a least value); None as a bound: only told
    told     in words, what was recommended and what was best
    """

    group: str
    asks: str
    cells: int
    figures: dict[str, tuple[float, float | None, bool]]
    told: str


def decisions(verdict: Verdict, model: str = FULL) -> list[Decision]:
    """Every decision that the measured cells allow to judge, by one of the models."""
    found = []
    for name in dict.fromkeys(group for cell in verdict.cells for group in cell.groups):
        cells = [cell for cell in verdict.measured if name in cell.groups and cell.rates(model) is not None]
        found += list(_decide(name, cells, model))
    return found


def _decide(group: str, cells: Sequence[Judged], model: str) -> Iterator[Decision]:
    if len(cells) < 2:
        return
    pairs = {cell.of.pair for cell in cells}
    batches = {cell.batch for cell in cells}
    if _slopes(cells):
        yield from _slope(group, cells, model)
    elif len(pairs) == 2 and len(batches) > 1:
        yield from _crossover(group, cells, model)
    elif len(batches) > 1:
        return
    elif len({pair[:2] for pair in pairs}) > 1:
        yield _order(group, cells, model)
    else:
        yield _settings(group, cells, model)


def _slopes(cells: Sequence[Judged]) -> bool:
    """Whether the link, or what crosses it for one block, varies."""
    return len({(cell.of.block, cell.of.background_gb_s, cell.of.link_gb_s or 0.0) for cell in cells}) > 1


def _rates(cells: Sequence[Judged], model: str) -> tuple[dict[str, float], dict[str, float]]:
    both = {cell.key: cell.rates(model) for cell in cells}
    known = {key: rates for key, rates in both.items() if rates is not None}
    return {key: rates[0] for key, rates in known.items()}, {key: rates[1] for key, rates in known.items()}


def _resolution(cells: Sequence[Judged]) -> float:
    known = [cell.repeatability for cell in cells if cell.repeatability is not None]
    return max(known) if known else LEVEL


def _order(group: str, cells: Sequence[Judged], model: str) -> Decision:
    measured, predicted = _rates(cells, model)
    order = kendall_tau(measured, predicted, resolution=_resolution(cells))
    chosen = regret(measured, predicted, level=ADVISED_LEVEL)
    figures: dict[str, tuple[float, float | None, bool]] = {"regret": (chosen.share, REGRET, False)}
    if order.tau is not None:
        figures["Kendall's tau"] = order.tau, TAU, True
    wrong = "; ".join(f"{best} beats {other}" for best, other in order.discordant)
    told = _chosen(chosen.recommended, chosen.best) + (f"; in the wrong order: {wrong}" if wrong else "")
    return Decision(group=group, asks="order", cells=len(cells), figures=figures, told=told)


def _settings(group: str, cells: Sequence[Judged], model: str) -> Decision:
    # The cheapest first: the fewest thread blocks, as advice has it.
    ordered = sorted(cells, key=lambda cell: (cell.copy_ctas or 0, cell.of.in_flight_kib or 0, cell.of.slots))
    chosen = regret(*_rates(ordered, model), level=ADVISED_LEVEL)
    return Decision(
        group=group, asks="settings", cells=len(cells), figures={"regret": (chosen.share, CHOICE, False)},
        told=_chosen(chosen.recommended, chosen.best),
    )  # fmt: skip


def _chosen(recommended: str, best: str) -> str:
    return f"recommended and best: {best}" if recommended == best else f"recommended: {recommended}; best: {best}"


def _crossover(group: str, cells: Sequence[Judged], model: str) -> Iterator[Decision]:
    by_pair: dict[tuple[str, str, str], dict[int, Judged]] = {}
    for cell in cells:
        by_pair.setdefault(cell.of.pair, {})[cell.batch] = cell
    (first, one), (second, other) = by_pair.items()
    grid = sorted(one.keys() & other.keys())
    if not grid:
        return
    series = [[side[batch].rates(model) or (0.0, 0.0) for batch in grid] for side in (one, other)]
    found = crossing(*[[rates[at] for rates in side] for at in (0, 1) for side in series])
    where = ["never" if at is None else f"b{grid[at]}" for at in (found.measured_at, found.predicted_at)]
    yield Decision(
        group=group, asks="crossover", cells=len(cells),
        figures={"grid steps apart": (float(found.steps_apart), GRID_STEPS, False)},
        told=f"{' '.join(second)} overtakes {' '.join(first)}: measured {where[0]}, predicted {where[1]}",
    )  # fmt: skip


def _slope(group: str, cells: Sequence[Judged], model: str) -> Iterator[Decision]:
    """Slopes of ln(rate) by ln(x) between neighbours, method by method; x is what the surrogate varies."""
    by_method: dict[str, list[Judged]] = {}
    for cell in cells:
        by_method.setdefault(_method(cell.of), []).append(cell)
    apart, told = [], []
    for method, some in by_method.items():
        points = sorted((x, cell.rates(model)) for cell in some if (x := _turned(cell, some)) is not None)
        for (low, a), (high, b) in itertools.pairwise(points):
            if a is None or b is None or low == high:
                continue
            measured, predicted = (log_slope((low, a[at]), (high, b[at])) for at in (0, 1))
            apart.append(abs(predicted - measured))
            told.append(f"{method}, {low:.3g} to {high:.3g}: {measured:+.2f} measured, {predicted:+.2f} predicted")
    if apart:
        yield Decision(
            group=group, asks="slope", cells=len(cells), figures={"slope apart, most": (max(apart), SLOPE, False)},
            told="; ".join(told),
        )  # fmt: skip


def _method(cell: ValidationCell) -> str:
    return f"{' '.join(cell.pair)} {cell.load}"


def _turned(cell: Judged, some: Sequence[Judged]) -> float | None:
    """What stands for the link's speed in a group: what is left of it, or the bytes that a step moves."""
    links = {(one.of.link_gb_s, one.of.background_gb_s) for one in some}
    if len(links) == 1:
        return cell.moved_bytes or None
    if cell.of.link_gb_s is not None:
        return cell.of.link_gb_s
    return LINK_GB_S - cell.of.background_gb_s if cell.of.engine != "thread" else None


#: 1e9 bytes a second that a PCIe 5 x16 link gives one stream of copies, here only the scale of a slope's axis.
LINK_GB_S = 55.4


def decision_bars(verdict: Verdict) -> list[JudgedBar]:
    """Every bounded figure of decisions as a bar, the worst of all groups, since it holds in each; cells are groups."""
    found: dict[tuple[str, str], list[tuple[float, str, float, bool]]] = {}
    for one in decisions(verdict):
        for name, (figure, bound, least) in one.figures.items():
            if bound is not None:
                found.setdefault((one.asks, name), []).append((figure, one.group, bound, least))
    made = []
    for (asks, name), figures in found.items():
        figure, group, bound, least = max(figures, key=lambda one: -one[0] if one[3] else one[0])
        bar = Bar(name=f"{asks}: {name}", where=f"worst in {group}", figure=figure, bound=bound, least=least)
        made.append(JudgedBar(bar=bar, cells=len(figures)))
    return made


def decisions_table(verdict: Verdict) -> Table:
    """One line a decision."""
    lines = [
        (one.group, one.asks, str(one.cells), "; ".join(_figure(name, *told) for name, told in one.figures.items()),
         "; ".join(name for name, told in one.figures.items() if not _met(*told)) or "-", one.told)
        for one in decisions(verdict)
    ]  # fmt: skip
    return Table(title="Decisions", head=("group", "asks", "cells", "figures", "not met", "in words"), lines=lines)


def _met(figure: float, bound: float | None, least: bool) -> bool:  # noqa: FBT001 - a figure's parts, in their order
    return bound is None or (figure >= bound if least else figure <= bound)


def _figure(name: str, figure: float, bound: float | None, least: bool) -> str:  # noqa: FBT001
    value = percent(figure, signed=False) if name == "regret" else f"{figure:.3g}"
    return f"{name} {value}" + ("" if bound is None else f" ({'>=' if least else '<='} {bound:g})")
