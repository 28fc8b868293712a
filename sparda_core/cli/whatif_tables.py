"""What `sparda whatif` shows on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sparda_core.cli.screen import console, seconds, show_table, size
from sparda_core.whatif.figures import axis_label, short
from sparda_core.whatif.frontier import Cell, cells, frontiers, pairs
from sparda_core.whatif.row import Row, Status
from sparda_core.whatif.summary import margin, reasons

if TYPE_CHECKING:
    from sparda_core.whatif.asked import Question
    from sparda_core.whatif.crossover import Found
    from sparda_core.whatif.study import Study

#: Lines of a table that a person still reads.
MOST_LINES = 40
STATUS_WORDS: dict[str, str] = {Status.FITS: "fit", Status.NO_MEMORY: "out of memory"}
FIGURES = ("tokens/s", "step", "exposed", "device memory", "bound by")


def show_study(asked: Question, study: Study, found: Sequence[Found], folder: Path | None) -> None:
    """Best of every cell, frontier, speed-ups, crossovers, and what was impossible."""
    _best(study, asked.choices)
    _frontier(study, asked.choices)
    if asked.between is not None:
        first, second = asked.between.names
        rows = [[*map(_cell, pair.given.values()), pair.speedup, _why(pair.first, pair.second)]
                for pair in pairs(study, asked.between)]  # fmt: skip
        given = [axis.name for axis in study.grid.axes if axis.name not in asked.between.first]
        _table(f"How many times faster {second} is than {first}", [*given, "times", "no time because"], rows)
    if found:
        _crossovers(asked, found)
    _reasons(study, folder)


def _best(study: Study, choices: Sequence[str] | None) -> None:
    every = cells(study, choices)
    given = list(every[0].given)
    chosen = [axis.name for axis in study.grid.axes if axis.name not in given]
    rows = [
        [*map(_cell, cell.given.values()), *_row(cell.ranked[0], chosen), _percent(margin(cell))]
        if cell.ranked
        else [*map(_cell, cell.given.values()), *[None] * (len(chosen) + len(FIGURES) - 1), _lost(cell), None]
        for cell in every
    ]
    if chosen:
        _table("Fastest choice in each cell", [*given, *chosen, *FIGURES, "ahead by"], rows)
    else:
        _table("Every point", [*given, *FIGURES], [row[:-1] for row in rows])


def _frontier(study: Study, choices: Sequence[str] | None) -> None:
    every = [cell for cell in frontiers(study, choices) if len(cell.rows) > 1]
    if not every:
        return
    given = list(every[0].given)
    chosen = [axis.name for axis in study.grid.axes if axis.name not in given]
    rows = [[*map(_cell, cell.given.values()), *_row(row, chosen)] for cell in every for row in cell.frontier]
    _table("Frontier: more tokens/s only for more device memory", [*given, *chosen, *FIGURES], rows)


def _crossovers(asked: Question, found: Sequence[Found]) -> None:
    assert asked.between is not None
    assert asked.crossover is not None
    base, other = asked.between.names
    by = "" if asked.crossover.lead == 1 else f" by {asked.crossover.lead:g}x"
    words = (other, base) if not by else (f"{other}{by}", f"not{by}")
    rows = [[*map(_cell, one.given.values()), one.crossovers.told(*words) if one.crossovers else one.reason]
            for one in found]  # fmt: skip
    title = f"Where {other} beats {base}{by}, as {axis_label(asked.crossover.knob)} goes from "
    title += f"{asked.crossover.low:g} to {asked.crossover.high:g}"
    _table(title, [*(axis.name for axis in asked.cells.axes), "faster (changes within 1 %)"], rows)


def _reasons(study: Study, folder: Path | None) -> None:
    counts = study.counts
    notes = [f"Predicted, not measured. {len(study.rows)} points: " + ", ".join(
        f"{count} {STATUS_WORDS.get(status, status)}" for status, count in counts.items()) + "."]  # fmt: skip
    marked = sum(row.extrapolated is not None for row in study.rows)
    if marked:
        notes.append(f"{marked} points lie outside what the profile's numbers were measured for.")
    if folder is not None:
        notes.append(f"All rows: {folder / 'rows.csv'}.")
    rows = [(count, reason) for reason, count in reasons(study)[:5]]
    if rows:
        show_table("Impossible points", ("points", "reason"), rows)
    for note in notes:
        console().print(Text(note, style="dim"))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    more = len(rows) - MOST_LINES
    notes = [f"{more} more lines: see --out, --csv or --json."] if more > 0 else []
    show_table(title, columns, rows[:MOST_LINES], notes=notes)


def _row(row: Row, chosen: Sequence[str]) -> list[Any]:
    return [
        *(_cell(row.labels[name]) for name in chosen), row.tokens_per_s, seconds(row.step_s), seconds(row.exposed_s),
        size(row.device_bytes), row.bound,
    ]  # fmt: skip


def _lost(cell: Cell) -> str:
    short_of = [row for row in cell.rows if row.status == Status.NO_MEMORY]
    return _shortage(min(short_of, key=lambda row: row.need_bytes or 0)) if short_of else "impossible"


def _shortage(row: Row) -> str:
    return f"{row.short_of} memory: needs {size(row.need_bytes)}, has {size(row.have_bytes)}"


def _why(*rows: Row | None) -> str | None:
    for row in rows:
        if row is not None and not row.fits:
            return _shortage(row) if row.status == Status.NO_MEMORY else "impossible, see below"
    return None


def _cell(label: Any) -> Any:
    return "usual" if label is None else short(label) if isinstance(label, float) else label


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
