"""From steps whose copies the host lists to what a cut, a list, submission and the host's gather cost.

A step that moves nothing takes longer than the same kernels as one graph by its cuts: the list's way, and the host
time of a segment, which is known by itself. What blocks add to it is told by the host's own time with the list in
hand, and what remains beyond the link's time for the bytes is the copy's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle
from sparda_core.simulator.gpu_fit.samples import Row, Samples

_SECTION, _ENGINES = "host lists", ("copy-engine", "cpu-gather")
#: Less than so much is nothing.
_LEAST_S = 1e-9


def list_table(samples: Samples, link_bytes_per_s: float) -> Table:
    """launch.list_s and segment_s, copy_engine.start_s and submit_s, and the section `cpu_gather`.

    Raises ProfileError for missing rows, and where cuts cost less than the host's part of them.
    """
    lengths = ", ".join(str(row["blocks"]) for row in _moved(samples, "copy-engine", ", move"))
    start_s, submit_s = line([(row["blocks"], _s(row)) for row in _moved(samples, "copy-engine", ", move")])
    gathers = _moved(samples, "cpu-gather", ", move")
    call_s, byte_s = line([(row["bytes"], _s(row)) for row in gathers])
    how = f"host time with the list in hand, {lengths}"
    return {
        "launch": _cut_table(samples),
        "copy_engine": {
            "start_s": measured(_or_zero(start_s), "s", f"{how} pieces: at none"),
            "submit_s": measured(_or_zero(submit_s), "s", f"{how} pieces: slope"),
        },
        "cpu_gather": {
            "call_s": measured(max(1e-7, call_s), "s", f"{how} blocks gathered: at none"),
            "gather_bytes_per_s": measured(1 / max(1e-13, byte_s), "B/s", "the same: slope"),
            "land_s": measured(
                _or_zero(_landing_s(samples, gathers, link_bytes_per_s)), "s",
                "a layer beside one that moves nothing, less that and the bytes at the link's rate: median",
            ),
        },
    }  # fmt: skip


def _cut_table(samples: Samples) -> Table:
    """Both engines are cut alike; a sync step waits for every list."""
    whole = middle(samples.one(_SECTION, what="whole")["us"], "whole") * MICRO
    nothing = middle([_nothing_s(samples, engine) for engine in _ENGINES], "sync, no blocks")
    rests = [samples.one(_SECTION, what=f"{engine}, sync, rest", blocks=0) for engine in _ENGINES]
    segment_s = middle([_s(row) for row in rests], "rest")
    list_s = nothing - whole - segment_s
    if list_s <= 0:
        raise ProfileError(
            f"samples: a layer that is cut takes {nothing:g} s and {whole:g} s in one graph, but the host needs "
            f"{segment_s:g} s for a segment: no time is left for the list; measure section {_SECTION!r} again"
        )
    words = f"a layer of a step whose lists are empty, {nothing / MICRO:.1f} us, less {whole / MICRO:.1f} in one graph"
    return {
        "list_s": measured(list_s, "s", f"{words} and the segment"),
        "segment_s": measured(max(1e-7, segment_s), "s", "host time of such a layer but for waiting"),
    }


def _nothing_s(samples: Samples, engine: str) -> float:
    return _s(samples.one(_SECTION, what=f"{engine}, sync", blocks=0))


def _landing_s(samples: Samples, gathers: Sequence[Row], link_bytes_per_s: float) -> float:
    """Beyond the gathering and the bytes."""
    nothing = _nothing_s(samples, "cpu-gather")
    over = []
    for row in gathers:
        whole = _s(samples.one(_SECTION, what="cpu-gather, sync", blocks=row["blocks"]))
        over.append(whole - nothing - _s(row) - row["bytes"] / link_bytes_per_s)
    return middle(over, "cpu-gather, sync")


def _moved(samples: Samples, engine: str, part: str) -> list[Row]:
    """Rows of sync steps that moved anything."""
    what = f"{engine}, sync{part}"
    found = [row for row in samples.rows(_SECTION, what=what) if row["blocks"]]
    if not found:
        raise ProfileError(f"samples: section {_SECTION!r} has no row of blocks with what={what!r}; measure it again")
    return found


def _or_zero(seconds: float) -> float:
    return seconds if seconds >= _LEAST_S else 0.0


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
