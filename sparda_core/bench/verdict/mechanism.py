"""Bars on parts: copy bandwidth, slowdown beside copies, exposed wait. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.verdict.judged import Judged, Part
from sparda_core.bench.verdict.limits import JudgedBar
from sparda_core.bench.verdict.parts import BANDWIDTH, COPY_ALONE, COPY_BESIDE, EXPOSED, SLOWDOWN

#: An exposed wait is right within this share, or within so many seconds.
EXPOSED_SHARE, EXPOSED_S = 0.10, 5e-6


def exposed_excess(part: Part) -> float:
    """How far off a wait is, in units of what is allowed: at most 1 is right."""
    return abs(part.predicted - part.measured) / max(EXPOSED_SHARE * part.measured, EXPOSED_S)


#: Part -> (what its bar is called, how far off one is, how far it may be).
_BARS: Mapping[str, tuple[str, Callable[[Part], float], float]] = {
    BANDWIDTH: (f"{BANDWIDTH}: most error", lambda part: abs(part.error or 0.0), 0.05),
    COPY_ALONE: (f"{COPY_ALONE}: most error", lambda part: abs(part.error or 0.0), 0.05),
    COPY_BESIDE: (f"{COPY_BESIDE}: most error", lambda part: abs(part.error or 0.0), 0.05),
    SLOWDOWN: (f"{SLOWDOWN}: most difference", lambda part: abs(part.error or 0.0), 0.03),
    EXPOSED: (f"{EXPOSED}: most error over the larger of 10 % and 5 us", exposed_excess, 1.0),
}


def judge_parts(cells: Sequence[Judged]) -> Iterator[JudgedBar]:
    """Every bar on a part that some cell has; each over all of them, for a bar holds at each setting."""
    for name, (what, off, most) in _BARS.items():
        found = [(off(part), cell.key) for cell in cells for part in cell.parts if part.name == name]
        if found:
            farthest, where = max(found)
            bar = Bar(name=what, where=f"worst at {where}", figure=farthest, bound=most, least=False)
            yield JudgedBar(bar=bar, cells=len(found))
