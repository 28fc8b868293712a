"""Tables and sentences of docs/validation.md, filled from verdicts. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from sparda_core.bench.page import fill, markdown
from sparda_core.bench.verdict.judged import HOST, OVERLAPPED, Judged, Verdict
from sparda_core.bench.verdict.limits import STATISTICS, JudgedBar, median_error, strata_of
from sparda_core.bench.verdict.parts import COMPUTE
from sparda_core.bench.verdict.table import percent
from sparda_core.bench.verdict.tables import TABLES, bars_of
from sparda_core.errors import ConfigError
from sparda_core.simulator.step_models import FIXED, FULL, LONGER, MAX_OF_SUMS, NO_CONTENTION

#: What stands where a document has not been measured.
NOTHING = "*Not measured yet.*"
#: What stands where the cells that were measured tell nothing of a table.
EMPTY = "*No measured cells tell it.*"
#: What stands for figures among the tables of a page.
FIGURES = "figures"


def summary(verdict: Verdict) -> str:
    """What a reader should know first, in sentences made of the data."""
    cells = verdict.measured
    if not cells:
        return NOTHING
    graph, host = ([cell for cell in cells if (cell.stratum == HOST) == by_host] for by_host in (False, True))
    by = "`{name}` of {date} (digest {digest})".format(**verdict.profile)
    told = [
        f"- {len(cells)} cells are judged, measured and predicted ({verdict.title}), with profile {by}.",
        _spread("All cells but those whose steps the host issues or interrupts" if host else "All cells", graph),
        _compared(graph), _repeats(cells),
    ]
    if host:
        told.append(_spread("Those whose steps the host issues or interrupts", host))
    bars = [one for one in bars_of(verdict) if not one.ambition]
    missed = [one for one in bars if not one.bar.met]
    short = f"; missed: {_names(missed)}." if missed else "."
    told.append(f"- {len(bars) - len(missed)} of {len(bars)} bars are met{short}")
    return "\n".join(line for line in told if line)


def _names(missed: Sequence[JudgedBar]) -> str:
    return "; ".join(f"{one.bar.name} ({one.bar.where})" for one in missed)


def _spread(what: str, cells: list[Judged]) -> str:
    if not cells:
        return ""
    errors = [abs(error) for cell in cells if (error := cell.error()) is not None]
    worst = max(cells, key=lambda cell: abs(cell.error() or 0.0))
    return (
        f"- {what}: {len(cells)} cells, tokens/s {percent(statistics.median(errors), signed=False)} off at the median, "
        f"{percent(STATISTICS['p90'](errors), signed=False)} at the ninth decile; farthest off {worst.key} "
        f"({percent(worst.error())})."
    )


def _compared(cells: list[Judged]) -> str:
    overlapping = strata_of(cells).get(OVERLAPPED, [])
    some = overlapping or [cell for cell in cells if cell.overlaps]
    if not some:
        return ""
    where = "Balanced cells that overlap" if overlapping else "Cells that overlap"
    names = (FULL, NO_CONTENTION, LONGER, FIXED, MAX_OF_SUMS)
    each = ", ".join(f"{name} {percent(median_error(some, name), signed=False)}" for name in names if _has(some, name))
    return f"- {where} ({len(some)}), median error by model: {each}."


def _repeats(cells: Sequence[Judged]) -> str:
    known = [cell.repeatability for cell in cells if cell.repeatability is not None]
    if not known:
        return "- Each was measured once: what the machine does not repeat is not known."
    told = percent(statistics.median(known), signed=False), percent(STATISTICS["p90"](known), signed=False)
    return f"- The machine itself repeats a cell within {told[0]} at the median, {told[1]} at the ninth decile."


def _has(cells: list[Judged], model: str) -> bool:
    return any(cell.error(model) is not None for cell in cells)


def _table(name: str) -> Callable[[Verdict], str]:
    def make(verdict: Verdict) -> str:
        made = TABLES[name](verdict)
        return markdown(made.head, made.lines) if made.lines else EMPTY

    return make


PARTS: Mapping[str, Callable[[Verdict], str]] = {
    "summary": summary, **{name: _table(name) for name in TABLES}
}


def figures(name: str, verdict: Verdict) -> str:
    """The figures that the program which fills the page draws of a verdict, as the page shows them."""
    shown = [("Measured and predicted", ""), ("Errors by model", "-models")]
    if any(part.name == COMPUTE for cell in verdict.cells for part in cell.parts):
        shown.append(("One step, measured and predicted", "-step"))
    return "\n\n".join(f"![{title}](images/validation-{name}{end}.png)" for title, end in shown)


def filled(page: str, verdicts: Mapping[str, Verdict | None]) -> str:
    """The page with every table as the verdicts make it.

    verdicts  by name; NAME-TABLE takes that of NAME, TABLE that of ""; None: not measured yet, which the page then says
    Raises ConfigError for a table or a verdict that is not known.
    """

    def make(asked: str) -> str:
        name, _, table = asked.rpartition("-")
        if table not in (*PARTS, FIGURES) or name not in verdicts:
            raise ConfigError(f"table={asked!r} is unknown; known: {', '.join(PARTS)}, {FIGURES} of {sorted(verdicts)}")
        verdict = verdicts[name]
        if verdict is None:
            return NOTHING
        return figures(name, verdict) if table == FIGURES else PARTS[table](verdict)

    return fill(page, make)
