"""How the lookahead study is read: where lookahead pays, by what it was varied over, and what slots do instead."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparda_core.whatif.backends import Pool
from sparda_core.whatif.frontier import Between, Pair, pairs
from sparda_core.whatif.lookahead import AHEAD, MACHINE, PAPER, PAYS, QUERY, SAME, SCORED_POOLS, TRACE
from sparda_core.whatif.lookahead_changes import lookahead_changes
from sparda_core.whatif.reading import Sheet, readable
from sparda_core.whatif.row import Status
from sparda_core.whatif.study import Report, Study

#: Rows of a table that a screen takes.
_SCREEN = 40
REMARK = "Both sides have equal budgets and equal pools; what a Forecast costs in quality is not in here."
SCALING = (
    "A recording is taken over as shares: at every context as much of a selection is missed, with as many selections "
    "of slots, as on the 8,000 tokens that were recorded."
)


def lookahead_tables(study: Study, pool: Pool, report: Report | None) -> tuple[Sheet, ...]:
    """Shares of cells in which lookahead pays, gains by point, slots in its place, and where it begins to pay."""
    by = [(name,) for name in (TRACE, MACHINE, "context") if name in _names(study)]
    across = [(TRACE, *names) for names in by if TRACE in _names(study) and names != (TRACE,)]
    sheets = [_shares(study, (*names, "pool")) for names in (across or by or [()])]
    first = _shares(study, ((TRACE, "pool") if TRACE in _names(study) else ("pool",)))
    return (
        first, *(sheet for sheet in sheets if sheet.columns != first.columns), _matrix(study), _instead(study),
        _slots_instead(study), lookahead_points(study), *lookahead_changes(study, pool, report),
    )  # fmt: skip


def _names(study: Study) -> set[str]:
    return {axis.name for axis in study.grid.axes}


def _remarks(study: Study) -> tuple[str, ...]:
    base = study.grid.base
    misses = f"synthetic locality {base.locality}" if base.locality else f"recording {base.recording}"
    if TRACE in _names(study) or "recording" in _names(study):
        misses = "synthetic localities and recordings, as named"
    told = f"Predicted, not measured: misses come from {misses}; no machine but the H200's is calibrated, and that one "
    return f"{told}not calibrated on these steps.", REMARK, *((SCALING,) if "recording" in misses else ())


def _shares(study: Study, by: tuple[str, ...]) -> Sheet:
    """One row for each combination of `by`, over all cells of it that fit on both sides."""
    groups: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in _possible(study, SAME):
        groups.setdefault(tuple(pair.given[name] for name in by), []).append(pair)
    plain = {_key(pair): pair.speedup for pair in _possible(study, QUERY)}
    return Sheet(
        title=f"What lookahead adds: {AHEAD} by {SAME}, by {', '.join(by)}",
        columns=(
            *by, "cells", f"pays ({PAYS - 1:.0%} or more)", "share", "times as fast, median", "times as fast",
            f"times {QUERY}, median", "blocks moved per row", "exposed share without", "exposed share with",
            "slots per row, MB",
        ),
        rows=tuple((*labels, *_share_row(study, group, plain)) for labels, group in groups.items()),
        notes=_remarks(study), long=len(groups) > _SCREEN,
    )  # fmt: skip


def _share_row(study: Study, group: Sequence[Pair], plain: Mapping[Any, float | None]) -> tuple[Any, ...]:
    fit = [pair for pair in group if pair.speedup is not None]
    if not fit:
        return ("0 fit", *[None] * 9)
    gains = [pair.speedup for pair in fit if pair.speedup is not None]
    sides = [(pair.first, pair.second) for pair in fit if pair.first is not None and pair.second is not None]
    batch = [int(pair.given.get("batch", study.grid.base.batch)) for pair in fit]
    pays = sum(gain >= PAYS for gain in gains)
    against = [gain for pair in fit if (gain := plain.get(_key(pair))) is not None]
    return (
        len(gains), f"{pays} of {len(gains)}", round(pays / len(gains), 3), _rounded(statistics.median(gains)),
        _spread(gains), _rounded(statistics.median(against)) if against else None,
        _spread([(row.misses or 0) / n for (_, row), n in zip(sides, batch, strict=True)]),
        _spread([row.exposed_share for row, _ in sides]), _spread([row.exposed_share for _, row in sides]),
        _spread([(row.pool_bytes or 0) / n / 1e6 for (_, row), n in zip(sides, batch, strict=True)]),
    )  # fmt: skip


def _spread(values: Sequence[float | None]) -> str | None:
    real = [value for value in values if value is not None]
    low, high = (readable(float(f"{value:.3g}")) for value in (min(real), max(real))) if real else ("", "")
    return None if not real else low if low == high else f"{low} to {high}"


def _matrix(study: Study) -> Sheet:
    """Gains by everything that is given, batches across."""
    cells = [(pair.given, pair.speedup) for pair in _possible(study, SAME)]
    columns, rows = _by_batch(study, cells)
    return Sheet(
        title="The same by batch; - where it does not fit into memory", columns=columns, rows=rows,
        long=len(rows) > _SCREEN,
    )  # fmt: skip


def _instead(study: Study) -> Sheet:
    """Shares of cells in which slots alone beat lookahead on the paper's pool."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for given, gain in _slots_cells(study):
        if gain is not None:
            groups.setdefault(tuple(given[name] for name in (TRACE, "pool") if name in given), []).append(gain)
    by = (TRACE, "pool") if TRACE in _names(study) else ("pool",)
    return Sheet(
        title=f"Slots in place of lookahead: {SAME} with these slots by {AHEAD} with {PAPER}",
        columns=(*by, "cells", "slots are faster", "share", "times as fast, median", "times as fast"),
        rows=tuple(
            (
                *labels, len(gains), f"{(more := sum(g > 1 for g in gains))} of {len(gains)}",
                round(more / len(gains), 3), _rounded(statistics.median(gains)), _spread(gains),
            )
            for labels, gains in groups.items()
        ),
        notes=("More than 1: memory alone does more than lookahead on the last selection.",),
    )  # fmt: skip


def _slots_cells(study: Study) -> list[tuple[Mapping[str, Any], float | None]]:
    cells: list[tuple[Mapping[str, Any], float | None]] = []
    for name in study.grid.axis("pool").labels[1:]:
        found = pairs(study, Between(first={"method": AHEAD, "pool": PAPER}, second={"method": SAME, "pool": name}))
        cells += [({"pool": name, **pair.given}, pair.speedup) for pair in found if not _impossible(pair)]
    return cells


def _slots_instead(study: Study) -> Sheet:
    columns, rows = _by_batch(study, _slots_cells(study))
    return Sheet(
        title=f"Slots instead of lookahead: {SAME} with these slots, times as fast as {AHEAD} with {PAPER}",
        columns=columns, rows=rows, long=len(rows) > _SCREEN,
    )  # fmt: skip


def _by_batch(
    study: Study, cells: Sequence[tuple[Mapping[str, Any], float | None]]
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:  # fmt: skip
    """Columns and rows of a sheet: what is given down, batches across."""
    batches = study.grid.axis("batch").labels if "batch" in _names(study) else (study.grid.base.batch,)
    given = [axis.name for axis in study.grid.axes if axis.name not in ("method", "batch")]
    table: dict[tuple[Any, ...], dict[Any, float | None]] = {}
    for labels, value in cells:
        at = labels.get("batch", study.grid.base.batch)
        table.setdefault(tuple(labels[name] for name in given), {})[at] = _rounded(value)
    rows = tuple((*rest, *(row.get(batch) for batch in batches)) for rest, row in table.items())
    return (*given, *(f"batch {batch}" for batch in batches)), rows


def lookahead_points(study: Study) -> Sheet:
    """One row a pool and point: prefetching against the same selector, and against plain query selection."""
    by_query = {_key(pair): pair for pair in _possible(study, QUERY)}
    rows = []
    for pair in _possible(study, SAME):
        before, after = pair.first, pair.second
        if before is None or after is None or pair.speedup is None:
            reason = next((row.reason for row in (after, before) if row is not None and not row.fits), None)
            rows.append((*pair.given.values(), *[None] * 8, reason))
            continue
        rows.append((
            *pair.given.values(), after.misses, pair.speedup, by_query[_key(pair)].speedup, before.exposed_share,
            after.exposed_share, after.pool_bytes, after.tokens_per_s, after.bound, None,
        ))  # fmt: skip
    given = tuple(axis.name for axis in study.grid.axes if axis.name != "method")
    return Sheet(
        title=f"Every point ({AHEAD})",
        columns=(
            *given, "misses", f"times {SAME}", f"times {QUERY}", "exposed share without", "exposed share with",
            "pool_bytes", "tokens_per_s", "bound", "reason",
        ),
        rows=tuple(rows), long=True,
    )  # fmt: skip


def _possible(study: Study, base: str) -> list[Pair]:
    """Pairs but those that no machine could run."""
    found = pairs(study, Between(first={"method": base}, second={"method": AHEAD}))
    unscored = {_origin(pair) for pair in found if _impossible(pair) and pair.given["pool"] in SCORED_POOLS}
    return [pair for pair in found if not _impossible(pair) and _origin(pair) not in unscored]


def _origin(pair: Pair) -> tuple[Any, ...]:
    """Pool and where its misses come from: of a locality, which has no scores, nothing is told under `score`."""
    return tuple(pair.given.get(name) for name in (TRACE, "recording", "pool"))


def _impossible(pair: Pair) -> bool:
    return any(row is not None and row.status == Status.IMPOSSIBLE for row in (pair.first, pair.second))


def _key(pair: Pair) -> tuple[Any, ...]:
    return tuple(pair.given.items())


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
