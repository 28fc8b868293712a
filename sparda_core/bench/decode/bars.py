"""What the decode path must reach, as figures of measured rows: each with its bound and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from sparda_core.bench.decode.cell import NOSA, SPEC, Cell, main_shape
from sparda_core.bench.decode.floors import selection_floor_s
from sparda_core.bench.decode.report import Row, Rows, comparisons

#: Published decode steps of the reference on an H100 at 128K (arXiv 2606.04511, Table 4), seconds by batch.
PUBLISHED_S = {8: 17.0e-3, 16: 22.7e-3}
#: The best gain in decoding that the paper has for NOSA-8B, on an H100: SparDA's step against the base's.
PUBLISHED_NOSA_GAIN = 1.40
_SELECTING = ("score", "select", "diff")
#: Device memory of the paper's GPU, and the most rows of 128K tokens that are resident there beside the weights.
CAP_BYTES, CAP_ROWS = 80 * 2**30, 13


@attrs.frozen(kw_only=True)
class Bar:
    """One figure against its bound.

    name    what is judged
    where   at which cell
    figure  measured
    bound   what it must be at least, or at most
    least   whether `bound` is a least value
    """

    name: str
    where: str
    figure: float
    bound: float
    least: bool

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.figure >= self.bound if self.least else self.figure <= self.bound


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Every bar that the rows allow to judge."""
    have = Rows(rows)
    parts = (
        _resident(have), _compared(rows, have), _selection(have), _throughput(have), _capped(have), _reference(have),
        _nosa(have),
    )  # fmt: skip
    return [bar for part in parts for bar in part]


def _at(row: Row) -> str:
    return f"b{row['batch']} {row['context'] // 1024}K"


def _resident(have: Rows) -> Iterator[Bar]:
    for row in have.all(selector="forecast", runtime="resident", launches="graph"):
        yield Bar(name="resident step: floor / step", where=_at(row), figure=row["floor_share"], bound=0.72, least=True)


def _compared(rows: Sequence[Row], have: Rows) -> Iterator[Bar]:
    lines = comparisons(rows)
    for line in lines:
        where = f"b{line['batch']} 128K"
        for name, field, bound in (
            ("prefetch step / its bound", "prefetch_over_bound", 1.05),
            ("the same, copies as fast as alone", "prefetch_over_strict", 1.05),
            ("sync step / (resident + transfers)", "sync_over_parts", _sync_bound(have, line["batch"])),
        ):  # fmt: skip
            if line[field] is not None:
                yield Bar(name=name, where=where, figure=line[field], bound=bound, least=False)
        if line["overlap_alone"] is not None and line["prefetch_bound_s"]:
            allowed = line["overlap_alone"] * line["prefetch_over_bound"]
            yield Bar(name="overlap alone: sync / prefetch", where=where, figure=line["overlap_alone"],
                      bound=0.95 * allowed, least=True)  # fmt: skip
        early, sync = (have.one(**_pool(line["batch"], runtime)) for runtime in ("offload-prefetch", "offload-sync"))
        if line["batch"] <= 4 and early and sync:
            figure = early["step_s"] / sync["step_s"]
            yield Bar(name="prefetch / sync", where=where, figure=figure, bound=1.0, least=False)
    gains = [(line["prefetch_over_query_sync"], line["batch"]) for line in lines if line["prefetch_over_query_sync"]]
    if gains:
        best, batch = max(gains)
        where = f"b{batch} 128K"
        yield Bar(name="query sync / forecast prefetch, best", where=where, figure=best, bound=1.7, least=True)


def _pool(batch: int, runtime: str) -> dict[str, Any]:
    return {
        "selector": "forecast", "runtime": runtime, "batch": batch, "context": 1 << 17, "churn": 0.10,
        "policy": "last-selection", "slots": 1.0, "engine": "uva", "launches": "graph", "host_dtype": "same",
        "copies": "ours", "copy_launch": "layer",
    }  # fmt: skip


def _sync_bound(have: Rows, batch: int) -> float:
    """1.03, and 0.2 ms for the step's ends."""
    row = have.one(**_pool(batch, "offload-sync"))
    resident = have.one(selector="forecast", runtime="resident", batch=batch, context=1 << 17, launches="graph")
    if row is None or resident is None:
        return 1.03
    return 1.03 + 0.2e-3 / float(resident["step_s"] + row["copies_s"])


def _selection(have: Rows) -> Iterator[Bar]:
    shape = main_shape()
    for row in have.all(policy="last-selection", slots=1.0, churn=0.10, launches="graph", copy_launch="layer"):
        bound = {"query": {16: 2.0, 64: 2.0}, "forecast": {16: 2.5, 64: 1.6}}.get(row["selector"], {}).get(row["batch"])
        kinds = row.get("kinds_s", {})
        if bound is None or row["runtime"] == "resident" or any(kind not in kinds for kind in _SELECTING):
            continue
        cell = Cell(selector=row["selector"], runtime=row["runtime"], batch=row["batch"], context=row["context"])
        a_layer = sum(kinds[kind] for kind in _SELECTING) / shape.layers
        yield Bar(name=f"{row['selector']} selection / its floor", where=f"{row['runtime']} {_at(row)}",
                  figure=a_layer / selection_floor_s(cell, shape, SPEC), bound=bound, least=False)  # fmt: skip


def _throughput(have: Rows) -> Iterator[Bar]:
    plain = {"launches": "graph", "copies": "ours", "engine": "uva", "copy_launch": "layer"}
    for row in have.all(selector="forecast", runtime="offload-prefetch", **plain):
        name, field, bound = "memory-bound: floor / step", "floor_share", 0.72
        if row["bound"] == "link":
            name, field, bound = "link-bound: transfer floor / step", "link_share", 0.85
        yield Bar(name=name, where=row["key"], figure=row[field], bound=bound, least=True)


def _capped(have: Rows) -> Iterator[Bar]:
    """With 80 GiB: rows that prefetch over as many as are resident, as a share of what bytes and capacity allow."""
    resident = have.one(selector="forecast", runtime="resident", batch=CAP_ROWS, context=1 << 17, launches="graph")
    fit = [
        row for row in have.all(selector="forecast", runtime="offload-prefetch", context=1 << 17, churn=0.10)
        if row.get("device_planned_bytes", CAP_BYTES + 1) <= CAP_BYTES
    ]  # fmt: skip
    if resident is None or not fit:
        return
    best = max(fit, key=lambda row: float(row["tokens_per_s"]))
    allowed = _most_tokens_per_s(best) / _most_tokens_per_s(resident)
    figure = best["tokens_per_s"] / resident["tokens_per_s"] / allowed
    yield Bar(name="80 GiB: prefetch over resident / what bytes allow", where=best["key"], figure=figure, bound=0.9,
              least=True)  # fmt: skip


def _most_tokens_per_s(row: Row) -> float:
    return float(row["batch"] / max(row["floor_s"], row["link_floor_s"] or 0.0))


def _reference(have: Rows) -> Iterator[Bar]:
    for batch, published_s in PUBLISHED_S.items():
        ours = have.one(**_pool(batch, "offload-prefetch"))
        theirs = have.one(**{**_pool(batch, "offload-prefetch"), "copies": "paper", "launches": "eager"})
        if ours is None:
            continue
        best = min(published_s, theirs["step_s"]) if theirs else published_s
        yield Bar(name="reference's schedule, or its published step / ours", where=f"b{batch} 128K",
                  figure=best / ours["step_s"], bound=2.5, least=True)  # fmt: skip


def _nosa(have: Rows) -> Iterator[Bar]:
    """The best of the batches, as the paper tells it."""
    gains = []
    for sync in have.all(selector="nosa", runtime="offload-sync", shape=NOSA):
        alike = ("batch", "context", "churn", "policy", "slots", "engine", "host_dtype", "copies", "launches")
        fields = {name: sync[name] for name in alike}
        early = have.one(selector="nosa-forecast", runtime="offload-prefetch", shape=NOSA, **fields)
        if early is not None:
            gains.append((float(sync["step_s"] / early["step_s"]), _at(sync)))
    if gains:
        best, where = max(gains)
        yield Bar(name="nosa sync / nosa-forecast prefetch, best", where=f"{NOSA} {where}", figure=best,
                  bound=PUBLISHED_NOSA_GAIN, least=True)  # fmt: skip
