"""Rows of the decode benchmark against their floors: the figures that claims are made of. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparda_core.bench.decode.cell import ENTRIES, MAIN, Cell
from sparda_core.bench.decode.floors import link_floor_s, step_bytes
from sparda_core.shapes import BlockSpec, ModelShape

Row = dict[str, Any]

#: Columns of the printed table: heading -> how a row shows it.
COLUMNS = (
    "cell", "step ms", "p90", "tokens/s", "floor ms", "floor/step", "misses", "link GB/s", "link floor ms", "copies ms",
)  # fmt: skip


#: The same of `gains`: ratios of step times, at the paper's pool.
GAINS = (
    "batch", "query sync / prefetch", "sync / prefetch", "prefetch bound ms", "prefetch / bound",
    "the same, copies as alone", "sync / (resident + copies)",
)  # fmt: skip


def row_of(cell: Cell, measured: Mapping[str, Any], shape: ModelShape, spec: BlockSpec) -> Row:
    """A measurement with its floors. `measured`: see `measure.Measured.to_plain`."""
    least = step_bytes(cell, shape, spec)
    moved = float(measured["moved_bytes"])
    link = link_floor_s(moved)
    step_s = float(measured["step_s"])
    return {
        "key": cell.key, **cell.to_plain(), **measured, "tokens_per_s": cell.batch / step_s,
        "floor_bytes": least.total, "floor_s": least.floor_s, "floor_share": least.floor_s / step_s,
        "link_floor_s": link, "link_share": link / step_s, "link_bytes_per_s": moved / step_s,
        "bound": "link" if link > least.floor_s else "hbm",
    }  # fmt: skip


def refused_row(cell: Cell, reason: str) -> Row:
    """A cell that does not fit."""
    return {"key": cell.key, **cell.to_plain(), "refused": reason}


def table(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The rows as `COLUMNS` shows them; a refused cell says so in place of its time."""
    return [_line(row) for row in rows]


def _line(row: Row) -> tuple[Any, ...]:
    if "refused" in row:
        return (row["key"], "does not fit", *[None] * (len(COLUMNS) - 2))
    copies = row.get("copies_s")
    return (
        row["key"], row["step_s"] * 1e3, row["step_p90_s"] * 1e3, row["tokens_per_s"], row["floor_s"] * 1e3,
        row["floor_share"], row["miss_share"], row["link_bytes_per_s"] / 1e9, row["link_floor_s"] * 1e3,
        None if copies is None else copies * 1e3,
    )  # fmt: skip


class Rows:
    """Rows by what they measure, for questions that take several. Those with `early` set by hand, and those with a lead
    or entries of ours, answer none.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        # Rows from before there was a choice were launched by layer, and of the main shape.
        self._rows = [
            {"copy_launch": "layer", "shape": MAIN, **row}
            for row in rows
            if "refused" not in row and row.get("early") is None
            and row.get("lead", 1) == 1 and row.get("entries", ENTRIES[0]) == ENTRIES[0]
        ]

    def one(self, **fields: Any) -> Row | None:
        """The row whose fields have these values; None where no or several rows do."""
        found = self.all(**fields)
        return found[0] if len(found) == 1 else None

    def all(self, **fields: Any) -> list[Row]:
        """All rows whose fields have these values."""
        return [row for row in self._rows if all(row[name] == value for name, value in fields.items())]

    def batches(self, context: int) -> list[int]:
        """Batch sizes measured at a context."""
        return sorted({row["batch"] for row in self._rows if row["context"] == context})


def comparisons(rows: Sequence[Row], *, context: int = 1 << 17, churn: float = 0.10) -> list[Row]:
    """What overlap and selection gain at the paper's pool, a line a batch; None where a cell is missing.

    prefetch_over_query_sync   query sync / forecast prefetch: the headline
    overlap_alone              forecast sync / forecast prefetch
    prefetch_over_bound        forecast prefetch / its bound, see `bound_s`
    prefetch_over_strict       the same with copies as fast as they are alone
    sync_over_parts            forecast sync / (resident + copies)
    """
    have = Rows(rows)
    out = []
    for batch in have.batches(context):
        common = {"batch": batch, "context": context, "launches": "graph", "host_dtype": "same", "copies": "ours"}
        resident = have.one(selector="forecast", runtime="resident", **common)
        pool = {
            **common, "churn": churn, "policy": "last-selection", "slots": 1.0, "engine": "uva",
            "copy_launch": "layer",
        }  # fmt: skip
        query = have.one(selector="query", runtime="offload-sync", **pool)
        sync = have.one(selector="forecast", runtime="offload-sync", **pool)
        early = have.one(selector="forecast", runtime="offload-prefetch", **pool)
        out.append({
            "batch": batch,
            "prefetch_over_query_sync": _ratio(query, early),
            "overlap_alone": _ratio(sync, early),
            "prefetch_bound_s": None if early is None or resident is None else bound_s(early, resident),
            "prefetch_over_bound": None
            if early is None or resident is None else early["step_s"] / bound_s(early, resident),
            "prefetch_over_strict": None
            if early is None or resident is None else early["step_s"] / bound_s(early, resident, copies="copies_s"),
            "sync_over_parts": None
            if sync is None or resident is None else sync["step_s"] / (resident["step_s"] + sync["copies_s"]),
        })  # fmt: skip
    return out


def gains(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """`comparisons` as `GAINS` shows them, batches of which nothing can be compared left out."""
    told = []
    for batch, headline, overlap, bound, *rest in (line.values() for line in comparisons(rows)):
        figures = (headline, overlap, None if bound is None else bound * 1e3, *rest)
        if any(figure is not None for figure in figures):
            told.append((batch, *figures))
    return told


def bound_s(early: Row, resident: Row, *, copies: str = "copies_beside_s") -> float:
    """What a prefetching step should come near: its compute beside a copy, or its copies end to end.

    The first is the resident step, slowed down as this plan's own compute is beside a copy that never ends; the
    second adds the compute before the first transfer can be known and after the last one is needed. Copies take as
    long as beside compute that never ends, which a step whose kernels leave gaps can beat; or, with "copies_s" and
    where nothing else was measured, as long as alone, which no step beats.
    """
    slowdown = early["compute_beside_copy_s"] / early["compute_s"]
    transfers = early["head_s"] + (early[copies] or early["copies_s"]) + early["tail_s"]
    return max(float(slowdown * resident["step_s"]), float(transfers))


def _ratio(slow: Row | None, fast: Row | None) -> float | None:
    return None if slow is None or fast is None else float(slow["step_s"] / fast["step_s"])
