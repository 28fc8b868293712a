"""Bars on parts: copy bandwidth, slowdown beside copies, exposed wait. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.verdict.judged import Judged, Part
from sparda_core.bench.verdict.limits import JudgedBar
from sparda_core.bench.verdict.parts import (
    BANDWIDTH,
    COPY_ALONE,
    COPY_BESIDE,
    EXPOSED,
    FARTHEST,
    SLOWDOWN,
    exposed_excess,
)


def _wait(part: Part) -> float:
    return exposed_excess(part.measured, part.predicted)


#: Part -> (what its bar is called, how far off one is, how far it may be).
_BARS: Mapping[str, tuple[str, Callable[[Part], float], float]] = {
    BANDWIDTH: (f"{BANDWIDTH}: most error", lambda part: abs(part.error or 0.0), 0.05),
    COPY_ALONE: (f"{COPY_ALONE}: most error", lambda part: abs(part.error or 0.0), 0.05),
    COPY_BESIDE: (f"{COPY_BESIDE}: most error", lambda part: abs(part.error or 0.0), 0.05),
    SLOWDOWN: (f"{SLOWDOWN}: most difference", lambda part: abs(part.error or 0.0), 0.03),
    EXPOSED: (f"{EXPOSED}: most error over the larger of 10 % and 5 us", _wait, 1.0),
    FARTHEST: (f"{FARTHEST}: most error over the larger of 10 % and 5 us", _wait, 1.0),
}


def judge_parts(cells: Sequence[Judged]) -> Iterator[JudgedBar]:
    """Every bar on a part that some cell has; each over all of them, for a bar holds at each setting."""
    for name, (what, off, most) in _BARS.items():
        found = [(off(part), cell.key) for cell in cells for part in cell.parts if part.name == name]
        if found:
            farthest, where = max(found)
            bar = Bar(name=what, where=f"worst at {where}", figure=farthest, bound=most, least=False)
            yield JudgedBar(bar=bar, cells=len(found))
