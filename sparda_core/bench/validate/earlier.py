"""Rows of `sparda bench decode` as records: cells that were measured before there was a validation. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparda_core.bench.decode.cell import COPY_RULES, MAIN
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.record import Measured, Record, stratum_of
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.shapes import named_shape


def earlier_records(rows: Sequence[Mapping[str, Any]]) -> tuple[Record, ...]:
    """Records of the rows that a prediction can speak of: the main shape's, copies by layer, host bytes as they are."""
    return tuple(_record(row) for row in rows if _speaks(row))


def _speaks(row: Mapping[str, Any]) -> bool:
    usual = {"copy_launch": "layer", "host_dtype": "same", "shape": MAIN, "entries": "32/16", "early": None}
    return "refused" not in row and all(row.get(name, value) == value for name, value in usual.items())


def cell_of(row: Mapping[str, Any]) -> ValidationCell:
    """The cell of a row."""
    same = ("selector", "runtime", "batch", "context", "churn", "policy", "slots", "engine", "launches")
    paper: dict[str, Any] = {}
    if row["copies"] == COPY_RULES[1] and row["runtime"] != "resident":
        size = GpuOptions(copy_rule="paper").copy_size(row["batch"])
        paper = {"ctas": size.ctas, "in_flight_kib": size.in_flight_bytes >> 10}
    return ValidationCell(**{name: row[name] for name in same}, lead=row.get("lead", 1), **paper)


def _record(row: Mapping[str, Any]) -> Record:
    cell, shape = cell_of(row), named_shape(MAIN)
    offloaded = shape.layers - (0 if cell.selector == "query" else cell.lead) if cell.offloads else 0
    counts = np.zeros(shape.layers, np.int64)
    if offloaded:
        edges = np.floor(np.arange(offloaded + 1) * float(row["misses"]) / offloaded + 1e-9)
        counts[shape.layers - offloaded :] = np.diff(edges)
    blocks = cell.spec.block_count(cell.context)
    facts = CompactFacts(
        layers=shape.layers, batch=cell.batch, kv_heads=shape.kv_heads, budget=cell.budget,
        slots=cell.slot_count if offloaded else 0, lengths=(cell.context,),
        selected=(blocks if cell.selector == "dense" else min(cell.budget, blocks),), opened=(0,),
        misses=(counts.tolist(),),
    )  # fmt: skip
    measured = Measured(
        rounds_s=((row["step_s"],),), facts=facts, confirmed=0, launch=row["launch"],
        block_bytes=row["moved_bytes"] / row["misses"] if row["misses"] else 0.0,
    )  # fmt: skip
    ratio = (row["copies_s"] or row["link_floor_s"]) / row["floor_s"]
    groups = (f"combinations {cell.load} {cell.policy} x{cell.slots:g}",) if _compared(cell) else ()
    return Record(
        cell=cell, tier="earlier", stratum=stratum_of(ratio), ratio=ratio, groups=groups, measured=measured,
        identity={"machine": "NVIDIA H200", "of": "sparda bench decode"},
    )  # fmt: skip


def _compared(cell: ValidationCell) -> bool:
    """Whether it is one of those that are compared at one load: ten percent churn, our copies, in a graph."""
    plain = cell.lead == 1 and cell.ctas is None and cell.launches == "graph" and cell.churn == 0.10
    return plain and cell.selector != "dense"
