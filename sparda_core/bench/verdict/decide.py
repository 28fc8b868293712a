"""Bars and a table of decisions: whether predictions choose as measurements do. Torch-free.

What a decision is worth is worked out in bench/validate; here it is held to bars and told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.validate.decided import decisions
from sparda_core.bench.validate.folder import Run
from sparda_core.bench.validate.record import DRAWN, Predicted
from sparda_core.bench.verdict.judged import Judged, Verdict
from sparda_core.bench.verdict.limits import JudgedBar
from sparda_core.bench.verdict.table import Table, percent

#: Kind of decision -> what its figure is called, its bound, and whether that is a least value.
BOUNDS: Mapping[str, tuple[str, float, bool]] = {
    "tau": ("Kendall's tau", 0.9, True), "regret": ("regret", 0.02, False),
    "crossover": ("grid steps between crossovers", 1.0, False), "slope": ("slopes apart", 0.1, False),
}


def decided(run: Run, cells: Iterable[Judged]) -> tuple[dict[str, Any], ...]:
    """Decisions of a run, by the predictions that are judged."""
    records = []
    for record, cell in zip(run.records, cells, strict=True):
        told = {} if cell.predicted_s is None else {DRAWN: Predicted(step_s=cell.predicted_s)}
        records.append(attrs.evolve(record, predicted=told))
    return tuple(decisions(attrs.evolve(run, records=records), way=DRAWN))


def decision_bars(verdict: Verdict) -> list[JudgedBar]:
    """A bar a kind of decision, on the worst of its figures, since it holds for each; cells are decisions."""
    found: dict[str, list[tuple[float, str]]] = {}
    for row in verdict.decisions:
        found.setdefault(row["kind"], []).append((float(row["figure"]), row["decision"]))
    made = []
    for kind, figures in found.items():
        name, bound, least = BOUNDS[kind]
        figure, where = min(figures) if least else max(figures)
        bar = Bar(name=f"decisions: {name}", where=f"worst: {where}", figure=figure, bound=bound, least=least)
        made.append(JudgedBar(bar=bar, cells=len(figures)))
    return made


def decisions_table(verdict: Verdict) -> Table:
    """One line a decision."""
    return Table(
        title="Decisions", head=("figure", "value", "bound, met", "decision", "in words"),
        lines=[_line(row) for row in verdict.decisions],
    )  # fmt: skip


def _line(row: Mapping[str, Any]) -> Sequence[str]:
    name, bound, least = BOUNDS[row["kind"]]
    figure = float(row["figure"])
    met = figure >= bound if least else figure <= bound
    value = percent(figure, signed=False) if row["kind"] == "regret" else f"{figure:.3g}"
    bar = f"{'>=' if least else '<='} {bound:g}, {'yes' if met else '**no**'}"
    return name, value, bar, row["decision"], _WORDS[row["kind"]](row)


def _order(row: Mapping[str, Any]) -> str:
    wrong = "; ".join(f"{better} beats {other}" for better, other in row["wrong"])
    return f"{row['pairs']} pairs of {row['options']} options told apart" + (f"; wrong: {wrong}" if wrong else "")


def _choice(row: Mapping[str, Any]) -> str:
    if row["recommended"] == row["best"]:
        return f"recommended and best of {row['options']}: {row['best']}"
    return f"of {row['options']}: recommended {row['recommended']}; best {row['best']}"


def _crossing(row: Mapping[str, Any]) -> str:
    ends = ["never" if row[name] is None else f"at {row[name]} rows" for name in ("measured_at", "predicted_at")]
    return f"measured {ends[0]}, predicted {ends[1]}, of {', '.join(map(str, row['grid']))}"


def _slopes(row: Mapping[str, Any]) -> str:
    return f"d ln(tokens/s) / d ln(bytes): {row['measured']:+.2f} measured, {row['predicted']:+.2f} predicted"


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "tau": _order, "regret": _choice, "crossover": _crossing, "slope": _slopes,
}
