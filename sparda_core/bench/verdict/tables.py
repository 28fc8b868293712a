"""A verdict as tables, the same for a terminal, a page and JSON. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from sparda_core.bench.verdict.budget import budget_table
from sparda_core.bench.verdict.decide import decision_bars, decisions_table
from sparda_core.bench.verdict.hidden import hidden_table
from sparda_core.bench.verdict.judged import Judged, Part, Verdict
from sparda_core.bench.verdict.limits import ALL, STATISTICS, JudgedBar, judge, strata_of
from sparda_core.bench.verdict.mechanism import judge_parts
from sparda_core.bench.verdict.table import Cells, Table, milliseconds, percent
from sparda_core.simulator.step_models import FULL, STEP_MODELS

#: A model is closer than another where their errors differ by at least this, in points of a per cent.
POINT = 0.01
WORST = 12


def cells_table(verdict: Verdict) -> Table:
    """Every cell: measured, what the machine repeats, predicted, and both errors; why not, where it is so."""
    head = ("cell", "tier", "stratum", "measured ms", "repeats within", "predicted ms", "error", "replayed")
    return Table(title="Cells", head=head, lines=[_cell(cell) for cell in verdict.cells])


def _cell(cell: Judged) -> Cells:
    predicted = milliseconds(cell.predicted_s)
    if cell.problem is not None:
        predicted = f"{predicted}: {cell.problem}"
    measured = "not measured" if cell.measured_s is None else milliseconds(cell.measured_s)
    if cell.refused is not None:
        measured = f"none: {cell.refused}"
    return (
        cell.key, cell.tier, "; ".join(cell.strata), measured, percent(cell.repeatability, signed=False), predicted,
        percent(cell.error()), percent(cell.replay_error),
    )  # fmt: skip


def bars_of(verdict: Verdict) -> list[JudgedBar]:
    """Every bar that a verdict allows to judge: errors of tiers and strata, parts, decisions."""
    # What a mechanism may be off was set for a device of its own, not for cores that do other work besides.
    parts = judge_parts(verdict.measured) if verdict.device == "cuda" else ()
    return [*judge(verdict), *parts, *decision_bars(verdict)]


def bars_table(verdict: Verdict) -> Table:
    """Every bar; an ambition is told and failed by nobody."""
    lines = [
        (one.bar.name, one.bar.where, str(one.cells), f"{one.bar.figure:.4f}",
         f"{'>=' if one.bar.least else '<='} {one.bar.bound:.3g}",
         "yes" if one.bar.met else ("no" if one.ambition else "**no**"))
        for one in bars_of(verdict)
    ]  # fmt: skip
    return Table(title="Bars", head=("what", "where", "cells", "figure", "bound", "met"), lines=lines)


def models_table(verdict: Verdict) -> Table:
    """Median and ninth decile of absolute errors, by stratum and model."""
    names = _models(verdict)
    lines = [
        (stratum, str(len(cells)), *(_errors(cells, name) for name in names))
        for stratum, cells in strata_of(verdict.measured).items()
    ]
    return Table(title="Absolute errors: median, ninth decile", head=("stratum", "cells", *names), lines=lines)


def _models(verdict: Verdict) -> list[str]:
    known = {name for cell in verdict.measured for name in cell.models}
    return [name for name in STEP_MODELS if name in known]


def _errors(cells: Sequence[Judged], model: str) -> str:
    errors = [abs(error) for cell in cells if (error := cell.error(model)) is not None]
    if not errors:
        return "-"
    return f"{percent(statistics.median(errors), signed=False)}, {percent(STATISTICS['p90'](errors), signed=False)}"


def wins_table(verdict: Verdict) -> Table:
    """In how many cells the full model is closer than each other, level with it (within a point), or farther off."""
    lines = []
    for name in _models(verdict):
        if name == FULL:
            continue
        better = worse = 0
        both = [(cell.error(), cell.error(name)) for cell in verdict.measured]
        for full, other in both:
            if full is not None and other is not None:
                better += abs(other) - abs(full) >= POINT
                worse += abs(full) - abs(other) >= POINT
        lines.append((name, STEP_MODELS[name].what, str(better), str(len(both) - better - worse), str(worse)))
    head = ("against", "what it assumes", "full model closer", "level", "full model farther")
    return Table(title="Where the full model wins, and where not", head=head, lines=lines)


def worst_table(verdict: Verdict) -> Table:
    """The cells that are farthest off, with every model's error."""
    names = _models(verdict)
    worst = sorted(verdict.measured, key=lambda cell: (-abs(cell.error() or 0.0), cell.key))[:WORST]
    lines = [(cell.key, "; ".join(cell.strata), *(percent(cell.error(name)) for name in names)) for cell in worst]
    return Table(title="Farthest off", head=("cell", "stratum", *names), lines=lines)


def parts_table(verdict: Verdict) -> Table:
    """Error by component: over all cells in which it was measured, by its mean measured size."""
    found: dict[str, list[Part]] = {}
    for cell in verdict.measured:
        for part in cell.parts:
            found.setdefault(part.name, []).append(part)
    lines = [_part(name, parts) for name, parts in found.items()]
    head = ("part", "cells", "measured, mean", "error, median", "absolute, median", "absolute, most")
    return Table(title="Error by component", head=head, lines=lines)


def _part(name: str, parts: Sequence[Part]) -> Cells:
    errors = [error for part in parts if (error := part.error) is not None]
    mean = statistics.fmean(part.measured for part in parts)
    size = {"s": f"{1e3 * mean:.3f} ms", "B/s": f"{mean / 1e9:.1f} GB/s", "1": f"{mean:.3f}"}[parts[0].unit]
    told = _points if parts[0].unit == "1" else percent
    absolute = [abs(error) for error in errors]
    if not errors:
        return name, str(len(parts)), size, "-", "-", "-"
    most = [_unsigned(told(value)) for value in (statistics.median(absolute), max(absolute))]
    return name, str(len(parts)), size, told(statistics.median(errors)), *most


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def _unsigned(text: str) -> str:
    return text.removeprefix("+")


def strata_table(verdict: Verdict) -> Table:
    """How many cells each tier and stratum has, not measured and not predicted ones included."""
    tiers = list(dict.fromkeys(cell.tier for cell in verdict.cells))
    strata = [stratum for stratum in strata_of(verdict.cells) if stratum != ALL]
    lines = []
    for tier in (*tiers, ALL):
        cells = [cell for cell in verdict.cells if tier in (ALL, cell.tier)]
        counts = [sum(stratum in cell.strata for cell in cells) for stratum in strata]
        judged = sum(cell.error() is not None for cell in cells)
        lines.append((tier, str(len(cells)), str(judged), *map(str, counts)))
    return Table(title="Cells by tier and stratum", head=("tier", "cells", "judged", *strata), lines=lines)


def repeats_table(verdict: Verdict) -> Table:
    """What the machine itself does not repeat, by stratum: no error below it says anything."""
    lines = []
    for stratum, cells in strata_of(verdict.measured).items():
        known = [cell.repeatability for cell in cells if cell.repeatability is not None]
        if known:
            told = (statistics.median(known), STATISTICS["p90"](known), max(known))
            lines.append((stratum, str(len(known)), *(percent(value, signed=False) for value in told)))
    head = ("stratum", "cells measured twice or more", "median", "ninth decile", "most")
    return Table(title="Repeatability: largest round median over smallest", head=head, lines=lines)


#: Tables by the name that a page and JSON give them.
TABLES: Mapping[str, Callable[[Verdict], Table]] = {
    "strata": strata_table, "bars": bars_table, "models": models_table, "wins": wins_table, "parts": parts_table,
    "decisions": decisions_table, "hidden": hidden_table, "budget": budget_table, "worst": worst_table,
    "repeats": repeats_table, "cells": cells_table,
}  # fmt: skip
