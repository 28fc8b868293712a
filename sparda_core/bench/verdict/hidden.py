"""Hidden share of paired runs: what prefetch hides of what synchronous copies cost. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from sparda_core.bench.step_figures import paired_hidden_share
from sparda_core.bench.verdict.judged import Judged, Verdict
from sparda_core.bench.verdict.table import Cells, Table, percent

#: What three cells must share to be one pair of runs beside a resident one; the pool means nothing to the latter.
_LOAD = ("selector", "batch", "context", "block", "budget", "lead", "launches", "shape")
_POOL = ("churn", "policy", "slots", "engine", "ctas", "in_flight_kib", "background_gb_s", "link_gb_s")


def hidden_table(verdict: Verdict) -> Table:
    """(sync - prefetch) / (sync - resident) wherever all three were measured; the prefetching cell names the line."""
    head = ("cell", "hidden, measured", "predicted", "prefetch over sync, measured", "predicted")
    return Table(title="What prefetch hides of synchronous copies", head=head, lines=list(_lines(verdict)))


def _lines(verdict: Verdict) -> Iterator[Cells]:
    by = {_key(cell, pool=True): cell for cell in verdict.measured}
    resident = {_key(cell, pool=False): cell for cell in verdict.measured if cell.of.runtime == "resident"}
    for cell in verdict.measured:
        if cell.of.runtime != "offload-prefetch":
            continue
        sync = by.get(("offload-sync", *_key(cell, pool=True)[1:]))
        still = resident.get(("resident", *_key(cell, pool=False)[1:]))
        if sync is None or still is None:
            continue
        shares = [_share(sync, cell, still, measured=which) for which in (True, False)]
        gains = [_seconds(sync, measured=which) / _seconds(cell, measured=which) for which in (True, False)]
        yield (
            cell.key, percent(shares[0], signed=False), percent(shares[1], signed=False),
            *(f"{gain:.2f} times" for gain in gains),
        )  # fmt: skip


def _key(cell: Judged, *, pool: bool) -> tuple[object, ...]:
    names = (*_LOAD, *_POOL) if pool else _LOAD
    return (cell.of.runtime, *(cell.cell[name] for name in names))


def _share(sync: Judged, early: Judged, resident: Judged, *, measured: bool) -> float | None:
    sync_s, early_s, resident_s = (_seconds(cell, measured=measured) for cell in (sync, early, resident))
    return paired_hidden_share(sync_s=sync_s, early_s=early_s, resident_s=resident_s)


def _seconds(cell: Judged, *, measured: bool) -> float:
    """A step of a cell that has both."""
    return (cell.measured_s if measured else cell.predicted_s) or 0.0
