"""Tables and sentences of docs/validation.md, filled from verdicts. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from sparda_core.bench.page import fill, markdown
from sparda_core.bench.verdict.judged import HOST, OVERLAPPED, Judged, Verdict
from sparda_core.bench.verdict.limits import STATISTICS, JudgedBar, median_error, strata_of
from sparda_core.bench.verdict.table import percent
from sparda_core.bench.verdict.tables import TABLES, bars_of
from sparda_core.errors import ConfigError
from sparda_core.simulator.step_models import FIXED, FULL, LONGER, MAX_OF_SUMS, NO_CONTENTION

#: What stands where a document has not been measured.
NOTHING = "*Not measured yet.*"


def summary(verdict: Verdict) -> str:
    """What a reader should know first, in sentences made of the data."""
    cells = verdict.measured
    if not cells:
        return NOTHING
    graph = [cell for cell in cells if cell.stratum != HOST]
    by = "`{name}` of {date} (digest {digest})".format(**verdict.profile)
    told = [
        f"- {len(cells)} of {len(verdict.cells)} cells are judged ({verdict.title}), predicted with profile {by}.",
        _spread("All cells but those whose steps the host issues or interrupts", graph),
        _compared(graph),
    ]
    host = [cell for cell in cells if cell.stratum == HOST]
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


def _has(cells: list[Judged], model: str) -> bool:
    return any(cell.error(model) is not None for cell in cells)


def _table(name: str) -> Callable[[Verdict], str]:
    def make(verdict: Verdict) -> str:
        made = TABLES[name](verdict)
        return markdown(made.head, made.lines) if made.lines else NOTHING

    return make


PARTS: Mapping[str, Callable[[Verdict], str]] = {
    "summary": summary, **{name: _table(name) for name in TABLES}
}


def filled(page: str, verdicts: Mapping[str, Verdict | None]) -> str:
    """The page with every table as the verdicts make it.

    verdicts  by name; NAME-TABLE takes that of NAME, TABLE that of ""; None: not measured yet, which the page then says
    Raises ConfigError for a table or a verdict that is not known.
    """

    def make(asked: str) -> str:
        name, _, table = asked.rpartition("-")
        if table not in PARTS or name not in verdicts:
            raise ConfigError(f"table={asked!r} is unknown; known: {', '.join(PARTS)} of {sorted(verdicts)}")
        verdict = verdicts[name]
        return NOTHING if verdict is None else PARTS[table](verdict)

    return fill(page, make)
