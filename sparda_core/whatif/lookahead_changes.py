"""Where lookahead begins to pay along the link and along the batch, by bisection."""

from __future__ import annotations

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.backends import Pool
from sparda_core.whatif.crossover import Asked, Found, crossovers_in
from sparda_core.whatif.figures import axis_label
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.lookahead import AHEAD, GENERATION, HEADLINE, LINK, MACHINE, METHODS, PAYS, SAME, TRACE
from sparda_core.whatif.reading import Sheet
from sparda_core.whatif.study import Report, Study

#: Rows of a table that a screen takes.
_SCREEN = 40
#: Where the search for a link begins, GB/s; it ends at what a link of the profile's kind can carry.
SLOWEST = 0.5
#: Tokens at which changes are looked for.
HEADLINE_CONTEXT = 2**17


def lookahead_changes(study: Study, pool: Pool, report: Report | None) -> list[Sheet]:
    """Where the gain over the same selector passes PAYS, along the link and the batch; of machines, on the H200."""
    grid = _headline(study.grid)
    sheets = []
    for name, apart in ((LINK, {LINK, GENERATION}), ("batch", {"batch"})):
        low, high = _span(grid, name)
        if not low < high:
            continue
        rest = {
            axis.name: dict(zip(axis.labels, axis.settings, strict=True)) if axis.name in (TRACE, "pool")
            else axis.labels
            for axis in grid.axes
            if axis.name not in {"method", *apart}
        }  # fmt: skip
        cells = Grid(base=grid.base, axes=rest, most=grid.most)
        ask = Asked(knob=name, low=low, high=high, lead=PAYS)
        found = crossovers_in(cells, METHODS[AHEAD], METHODS[SAME], ask, pool=pool, report=report)
        sheets.append(_changes(found, tuple(rest), ask))
    return sheets


def _headline(grid: Grid) -> Grid:
    """The same with machine and context at the headline's, where they are axes: a bisection a cell takes long."""
    base, kept = grid.base, []
    for axis in grid.axes:
        settings = dict(zip(axis.labels, axis.settings, strict=True))
        if axis.name == MACHINE:
            base = base.turned(**settings[HEADLINE])
        elif axis.name == "context" and HEADLINE_CONTEXT in settings:
            base = base.turned(context=HEADLINE_CONTEXT)
        else:
            kept.append((axis.name, settings if axis.name in (TRACE, "pool", "method") else axis.labels))
    return Grid(base=base, axes=dict(kept), most=grid.most)


def _span(grid: Grid, name: str) -> tuple[float, float]:
    """From where to where: one row to the largest batch; a slow link to the fastest of the profile's kind."""
    if name == "batch":
        return 1, max(grid.axis(name).labels) if any(axis.name == name for axis in grid.axes) else 1
    machine = grid.base.machine()
    if not isinstance(machine, GpuProfile):
        return SLOWEST, SLOWEST
    return SLOWEST, float(f"{machine.link.ceiling_bytes_per_s / 1e9 * 0.999:.3g}")


def _changes(found: list[Found], given: tuple[str, ...], ask: Asked) -> Sheet:
    told = [
        (one, one.crossovers.told("pays", "does not pay") if one.crossovers is not None else one.reason)
        for one in found
        if one.crossovers is not None or not _of_scores(one)
    ]
    return Sheet(
        title=f"Where lookahead gains {PAYS - 1:.0%} or more over the same selector without it, "
        f"as {axis_label(ask.knob)} goes from {ask.low:g} to {ask.high:g}",
        columns=(*given, "changes (within 1 %)"), rows=tuple((*one.given.values(), text) for one, text in told),
        long=len(told) > _SCREEN,
    )  # fmt: skip


def _of_scores(found: Found) -> bool:
    """Whether it is a pool that follows scores, on a locality, which has none."""
    return "score" in str(found.given.get("pool"))
