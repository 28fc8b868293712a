"""From steps whose copies the host lists to what a cut, a list, submission and the host's gather cost.

A step that moves nothing takes longer than the same kernels as one graph by the way of its lists. What else the host
does is read from its own clock, in steps that wait for a copy at once and in steps that wait a layer later. A
machine's other work lengthens such times and never shortens them, so of the two the faster counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.launches import HOST_LIST_ENGINES

_SECTION, _ENGINES = "host lists", HOST_LIST_ENGINES
_ORDERS = ("sync", "prefetch")
#: Less than so much is nothing.
_LEAST_S = 1e-9


def list_table(samples: Samples, link_bytes_per_s: float, gap_s: float) -> Table:
    """launch.list_s and segment_s, copy_engine.start_s and submit_s, and the section `cpu_gather`.

    gap_s  `launch.graph_s`, which whatever is launched behind a list takes besides
    Raises ProfileError for missing rows, and where cuts cost nothing.
    """
    submits, gathers = (_moves(samples, engine) for engine in _ENGINES)
    start_s, submit_s = line([(blocks, seconds) for blocks, (_, seconds) in submits.items()])
    call_s, byte_s = line(list(gathers.values()))
    call_s = max(1e-7, call_s)
    how = f"host time with the list in hand, {', '.join(map(str, submits))}"
    over_s = _overlap_s(samples, gathers, link_bytes_per_s)
    return {
        "launch": _cut_table(samples, gap_s),
        "copy_engine": {
            "start_s": measured(_or_zero(start_s), "s", f"{how} pieces: at none"),
            "submit_s": measured(_or_zero(submit_s), "s", f"{how} pieces: slope"),
        },
        "cpu_gather": {
            "call_s": measured(call_s, "s", f"{how} blocks gathered: at none"),
            "gather_bytes_per_s": measured(1 / max(1e-13, byte_s), "B/s", "the same: slope"),
            "scatter_s": measured(
                min(call_s, _or_zero(over_s)), "s",
                "gathering and the bytes at the link's rate, less what a layer takes beyond one that moves nothing",
            ),
        },
    }  # fmt: skip


def _cut_table(samples: Samples, gap_s: float) -> Table:
    """Both engines are cut alike."""
    whole = middle(samples.one(_SECTION, what="whole")["us"], "whole") * MICRO
    nothing = min(_s(samples.one(_SECTION, what=f"{engine}, sync", blocks=0)) for engine in _ENGINES)
    if nothing - gap_s <= whole:
        raise ProfileError(
            f"samples: a layer that is cut takes {nothing:g} s and {whole:g} s in one graph: no time is left for the "
            f"list; measure section {_SECTION!r} again"
        )
    rests = [
        _s(row) for engine in _ENGINES for order in _ORDERS
        for row in samples.rows(_SECTION, what=f"{engine}, {order}, rest")
    ]  # fmt: skip
    words = f"a layer of a step whose lists are empty, {nothing / MICRO:.1f} us, less {whole / MICRO:.1f} in one graph"
    words += " and a launch gap"
    return {
        "list_s": measured(nothing - whole - gap_s, "s", words),
        "segment_s": measured(
            max(1e-7, middle(rests, "rest")), "s", f"host time of a layer but for its list, {len(rests)} steps: median"
        ),
    }


def _moves(samples: Samples, engine: str) -> dict[int, tuple[float, float]]:
    """Bytes, and seconds of the host with the list in hand, by blocks; the faster order counts."""
    found: dict[int, tuple[float, float]] = {}
    for order in _ORDERS:
        for row in samples.rows(_SECTION, what=f"{engine}, {order}, move"):
            blocks = int(row["blocks"])
            if blocks and (blocks not in found or _s(row) < found[blocks][1]):
                found[blocks] = (float(row["bytes"]), _s(row))
    if not found:
        raise ProfileError(f"samples: section {_SECTION!r} has no row of blocks with {engine!r}; measure it again")
    return found


def _overlap_s(samples: Samples, gathers: Mapping[int, tuple[float, float]], link_bytes_per_s: float) -> float:
    """Of a gather's host time, what passes while its copy moves: in the step whose own host time counts."""
    what = "cpu-gather, sync"
    nothing, over = _s(samples.one(_SECTION, what=what, blocks=0)), []
    for blocks, (nbytes, _) in gathers.items():
        took = _s(samples.one(_SECTION, what=what, blocks=blocks)) - nothing
        moved = _s(samples.one(_SECTION, what=f"{what}, move", blocks=blocks))
        over.append(moved + nbytes / link_bytes_per_s - took)
    return middle(over, what)


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
