"""From parts of a step in turn to what an operation takes by rows, and what a launch behind another kernel costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import alone_s
from sparda_core.work import Work

#: Kinds of operations that are told by rows: the library's products in them change their tiles.
BY_ROWS = ("project", "output", "mlp", "head", "proxy")
#: Parts of a layer without selection and attention; and what a whole layer adds (bench/gpu_calibration/sequence.py).
LAYER, SELECTED = ("project", "output", "mlp"), ("score forecast", "choose", "attend pages")


def parts(samples: Samples, what: str) -> list[Row]:
    """Rows of a part that was timed in turn, by rows of the step; empty where samples are older than that."""
    rows = [row for row in samples.rows("sequence") if row.get("what") == what]
    return sorted(rows, key=lambda row: int(row["rows"]))


def in_turn_table(samples: Samples, profile: GpuProfile) -> Table:
    """Numbers of the section `kernels`, given bytes, FLOPs and gaps as `profile` has them; empty for older samples."""
    if not parts(samples, "layer"):
        return {}
    table: Table = {f"{kind}_rows": _curve(parts(samples, kind), profile) for kind in BY_ROWS}
    begin = [_rest_s(row, profile) / row["work"]["launches"] for row in parts(samples, "begin")]
    table["embed_s"] = measured(max(0.0, statistics.median(begin)), "s", "two kernels that a step begins with, in turn")
    turns = [*_turns(samples), *_whole_turns(samples)]
    words = f"layers in turn against their parts: the median of {len(turns)} differences a launch"
    table["turn_s"] = measured(max(0.0, statistics.median(turns)) * MICRO, "s", words)
    return table


def _curve(rows: Sequence[Row], profile: GpuProfile) -> Table:
    rest = [max(0.0, _rest_s(row, profile)) for row in rows]
    return {
        "tokens": [float(row["rows"]) for row in rows], "s": [rounded(value) for value in rest],
        "source": "the operation in turn with itself, as a step launches it, less bytes, FLOPs and gaps",
        "basis": "measured",
    }  # fmt: skip


def _rest_s(row: Row, profile: GpuProfile) -> float:
    return middle(row["us"], row["what"]) * MICRO - alone_s(profile, Work(**row["work"]))


def _turns(samples: Samples) -> list[float]:
    """Microseconds a launch by which a layer outlasts its parts, by rows."""
    each = {what: {row["rows"]: middle(row["us"], what) for row in parts(samples, what)} for what in LAYER}
    return [
        (middle(row["us"], "layer") - sum(each[what][row["rows"]] for what in LAYER)) / row["launches"]
        for row in parts(samples, "layer")
    ]


def _whole_turns(samples: Samples) -> list[float]:
    """The same of layers with selection and attention, where these were timed at about as many rows."""
    layer = {row["rows"]: row for row in parts(samples, "layer")}
    found = []
    for row in parts(samples, "whole layer"):
        more = [_about(samples, name, int(row["rows"])) for name in SELECTED]
        if row["rows"] in layer and None not in more:
            each = sum(
                middle(one["us"], what)
                for what in LAYER
                for one in parts(samples, what)
                if one["rows"] == row["rows"]
            )
            found.append((middle(row["us"], "whole layer") - each - sum(filter(None, more))) / row["launches"])
    return found


def _about(samples: Samples, kernel: str, rows: int) -> float | None:
    """Microseconds of a kernel at the usual context, between the nearest rows; None where it was not timed so far."""
    usual = samples.one("kernels", kernel=kernel).get("context")
    timed = samples.rows("kernels", kernel=kernel, context=usual)
    known = sorted((row["rows"], middle(row["us"], kernel)) for row in timed)
    below = [one for one in known if one[0] <= rows]
    above = [one for one in known if one[0] >= rows]
    if not (below and above):
        return None
    (low, at_low), (high, at_high) = below[-1], above[0]
    # What grows with rows is told only where it was timed; a choice hardly does.
    if low != high and at_high > 1.2 * at_low:
        return None
    share = 0.0 if low == high else math.log(rows / low) / math.log(high / low)
    return float(at_low + share * (at_high - at_low))
