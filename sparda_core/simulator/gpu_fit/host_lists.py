"""From copies whose list the host must see to what list, submission and the host's gather cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle
from sparda_core.simulator.gpu_fit.samples import Row, Samples

#: Less than so much a piece is nothing.
_LEAST_S = 1e-9


def list_table(samples: Samples) -> Table:
    """launch.list_s, copy_engine.submit_s and the section `cpu_gather`. Raises ProfileError for missing rows."""
    lists = samples.rows("host lists", what="list")
    list_s = middle([middle(row["us"], "lists") for row in lists], "lists") * MICRO
    lengths = ", ".join(str(row["blocks"]) for row in lists)
    _, submit_s = line([(row["blocks"], _s(row)) for row in samples.rows("host lists", what="copy-engine, host")])
    call_s, byte_s = line([(row["bytes"], _s(row)) for row in samples.rows("host lists", what="cpu-gather, host")])
    return {
        "launch": {"list_s": measured(list_s, "s", f"count and list read by the host, {lengths} blocks: median")},
        "copy_engine": {
            "submit_s": measured(
                submit_s if submit_s >= _LEAST_S else 0.0, "s", f"host time of a batched call, {lengths} pieces: slope"
            )
        },
        "cpu_gather": {
            "call_s": measured(max(1e-7, call_s), "s", "host time of gather, copy and scatter by bytes: at no bytes"),
            "gather_bytes_per_s": measured(1 / max(1e-13, byte_s), "B/s", f"the same, {lengths} blocks: slope"),
        },
    }  # fmt: skip


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(at 0, slope) >= 0 of the line with the least squared relative misfit; through 0 where it would start below."""
    x, y = (np.array(column, float) for column in zip(*points, strict=True))
    if len(x) > 1 and x.max() > x.min():
        both, *_ = np.linalg.lstsq(np.stack([1 / y, x / y], 1), np.ones_like(y), rcond=None)
        start, slope = float(both[0]), float(both[1])
        if start >= 0 and slope >= 0:
            return start, slope
        if slope < 0:
            return float(np.median(y)), 0.0
    return 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))


def _s(row: Row) -> float:
    return middle(row["us"], str(row["what"])) * MICRO
