"""From steps whose copies the host lists to what a cut, a list, submission and the host's gather cost.

A step that moves nothing takes longer than the same kernels as one graph: by what a cut takes of the device where the
host takes a list up a layer later, and by the list's way besides where it does so at once. What else the host
does is read from its own clock, in steps that wait for a copy at once and in steps that wait a layer later. A
machine's other work lengthens such times and never shortens them, so of the two the faster counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.host_steps import layer_s
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, best, ladder, measured, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.launches import HOST_LIST_ENGINES
from sparda_core.simulator.quantity import Basis, Quantity

_SECTION, _ENGINES = "host lists", HOST_LIST_ENGINES
_ORDERS = ("sync", "prefetch")
#: A host that waits for more than this share of a layer is ahead of the device.
_AHEAD = 0.1
#: Less than so much is nothing.
_LEAST_S = 1e-9


def list_table(samples: Samples, link_bytes_per_s: float, gap_s: float, pieces: Table) -> Table:
    """launch.list_s, cut_s and segment_s, copy_engine.start_s, submit_s and pieces, and the section `cpu_gather`.

    gap_s   `launch.graph_s`, which whatever is launched behind a list takes besides
    pieces  the curve by size, of single calls: a step's own blocks say more of theirs
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
            "pieces": _pieces(samples, link_bytes_per_s, pieces),
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
    cut_s, told = _cut_s(samples, whole)
    if nothing - gap_s - cut_s <= whole:
        raise ProfileError(
            f"samples: a layer that is cut takes {nothing:g} s and {whole:g} s in one graph: no time is left for the "
            f"list; measure section {_SECTION!r} again"
        )
    rests = [
        _s(row) for engine in _ENGINES for order in _ORDERS
        for row in samples.rows(_SECTION, what=f"{engine}, {order}, rest")
    ]  # fmt: skip
    words = f"a layer of a step whose lists are empty, {nothing / MICRO:.1f} us, less {whole / MICRO:.1f} in one graph,"
    words += " a launch gap and cut_s"
    return {
        "list_s": measured(nothing - whole - gap_s - cut_s, "s", words),
        "cut_s": measured(_or_zero(cut_s), "s", told),
        "segment_s": measured(
            max(1e-7, middle(rests, "rest")), "s", f"host time of a layer but for its list, {len(rests)} steps: median"
        ),
    }


def _cut_s(samples: Samples, whole_s: float) -> tuple[float, str]:
    """Of the device at a cut, and where that is from. Only a host that waits for the device does not add to it."""
    names = [f"{engine}, prefetch" for engine in _ENGINES]
    layers = {name: _s(samples.one(_SECTION, what=name, blocks=0)) for name in names}
    ahead = [
        layer_s for name, layer_s in layers.items()
        if _s(samples.one(_SECTION, what=f"{name}, list", blocks=0)) > _AHEAD * layer_s
    ]  # fmt: skip
    if not ahead:
        return 0.0, "the host was never ahead of the device: part of list_s"
    words = f"the same a layer later, {min(ahead) / MICRO:.1f} us, less {whole_s / MICRO:.1f} in one graph"
    return max(0.0, min(ahead) - whole_s), words


def _pieces(samples: Samples, link_bytes_per_s: float, known: Table) -> Table:
    """The curve with the rate of a step's own blocks: of single calls it is the host's, where that submits slower.

    A layer that waits for its copies takes longer by so much a block, between the two longest lists.
    """
    what = "copy-engine, sync"
    rows = sorted(samples.rows(_SECTION, what=what), key=lambda row: int(row["blocks"]))[-2:]
    short, long = rows[0], rows[-1]
    more_bytes, more_s = long["bytes"] - short["bytes"], _s(long) - _s(short)
    if more_bytes <= 0 or more_s <= 0:
        raise ProfileError(
            f"samples: {what!r} takes {_s(long):g} s with {long['blocks']} blocks and {_s(short):g} s with "
            f"{short['blocks']}: a longer list must take longer; measure section {_SECTION!r} again"
        )
    piece, rate = long["bytes"] / long["blocks"], min(link_bytes_per_s, more_bytes / more_s)
    rates = {**dict(zip(known["piece_bytes"], known["bytes_per_s"], strict=True)), int(piece): rounded(rate)}
    words = f"of {piece:g} bytes by layers that wait for {short['blocks']} and {long['blocks']} of them"
    return {
        **known, "piece_bytes": sorted(rates), "bytes_per_s": [rates[size] for size in sorted(rates)],
        "source": f"{known['source']}; {words}",
    }  # fmt: skip


def fit_beside(profile: GpuProfile, samples: Samples) -> GpuProfile:
    """The same profile with copy_engine.beside_s: with it the simulator plays layers whose copies run beside others."""
    assert profile.copy_engine is not None
    engine, what = profile.copy_engine, "copy-engine, prefetch"
    rows = [row for row in samples.rows(_SECTION, what=what) if row["blocks"]]
    whole_s = middle(samples.one(_SECTION, what="whole")["us"], "whole") * MICRO

    def with_beside(seconds: float) -> GpuProfile:
        told = Quantity(
            value=rounded(_or_zero(seconds)), unit="s", basis=Basis.MEASURED,
            source=f"layers whose copies run beside the next one's products, {len(rows)} lengths of list",
        )  # fmt: skip
        return attrs.evolve(profile, copy_engine=attrs.evolve(engine, beside_s=told))

    def misfit(seconds: float) -> float:
        at = with_beside(seconds)
        said = (layer_s(at, "copy-engine", row["blocks"], row["bytes"], whole_s, early=True) for row in rows)
        return sum((s / _s(row) - 1) ** 2 for s, row in zip(said, rows, strict=True))

    found = best(misfit, [0.0, *ladder(1e-8, 5e-6, 40)])
    return with_beside(best(misfit, ladder(found / 1.17, found * 1.17, 15)) if found else 0.0)


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
