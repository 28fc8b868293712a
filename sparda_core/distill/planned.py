"""What `sparda train --plan` shows: memory of a step by window, without training anything."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import attrs
from rich import box
from rich.console import Console
from rich.table import Table

from sparda_core.distill.config import PUBLISHED, TrainConfig
from sparda_core.distill.memory import MemoryPlan, plan_memory
from sparda_core.distill.parallel import processes
from sparda_core.models.load import load_model
from sparda_core.shapes import ModelShape, named_shape

WINDOWS = (8192, 65536, 131072)


def plans(args: argparse.Namespace, config: TrainConfig, shape: ModelShape) -> dict[int, MemoryPlan]:
    """Plans at 8K, 64K and 128K tokens and at the run's own window, ascending."""
    found = {}
    for window in sorted({config.window, *WINDOWS}):
        asked = window if config.objective in PUBLISHED else config.positions
        other = attrs.evolve(config, window=max(window, config.first_position + 1), positions=asked)
        found[window] = plan_memory(
            shape, other, value_bytes=4 if args.dtype == "float32" else 2, processes=processes(),
            shared_out=args.shard_model,
        )  # fmt: skip
    return found


def show_plan(args: argparse.Namespace, config: TrainConfig) -> None:
    """Print the plans as a table, or as JSON with --json."""
    shape = named_shape(args.shape) if args.shape else load_model(args.model).shape
    rows = {window: _row(plan) for window, plan in plans(args, config, shape).items()}
    if args.json:
        sys.stdout.write(json.dumps({"shape": shape.name, "unit": "bytes", "windows": rows}, indent=1) + "\n")
        return
    title = f"memory of one training step on {shape.name}, one process, GiB"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title)
    table.add_column("window", justify="right")
    names = list(next(iter(rows.values())))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for window, row in rows.items():
        table.add_row(f"{window}", *(f"{row[name] / 2**30:.2f}" for name in names))
    Console().print(table)


def _row(plan: MemoryPlan) -> dict[str, Any]:
    row = attrs.asdict(plan)
    full = row.pop("full")
    return {**row, "peak": plan.peak, "never_made": full}
