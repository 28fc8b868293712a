"""From copies that a graph forks beside attention to how fast they are by the thread blocks of it that an SM holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu_fit.quantities import GIGA, Table, rounded
from sparda_core.simulator.gpu_fit.reading import descend
from sparda_core.simulator.gpu_parts import bent
from sparda_core.simulator.quantity import Basis, CrowdCurve

#: Bends that say anything.
_BENDS = (1.0, 32.0)
#: (thread blocks of attention that some SM holds, thread blocks of the copy, bytes in flight of each, bytes a second).
Point = tuple[int, int, float, float]


def crowd_table(points: Sequence[Point], trip_s: float, cta: float, ceiling: float) -> Table:
    """`uva.crowded`; raises ProfileError where there are no points.

    trip_s, cta, ceiling  of copies with nothing beside them: t0, b and where the link is full
    """
    if not points:
        raise ProfileError("samples: section 'forked' has no copy that attention outlasts; measure it again")
    curve = crowds(points, trip_s, cta, ceiling)
    least, most = (of(rate for *_, rate in points) / GIGA for of in (min, max))
    return {
        "blocks": list(curve.blocks), "bytes_per_s": [rounded(rate) for rate in curve.bytes_per_s],
        "bend": [rounded(bend) for bend in curve.bend], "basis": "measured",
        "source": f"{len(points)} copies that a graph forks beside attention, at {least:.0f} to {most:.0f} GB/s",
    }  # fmt: skip


def crowds(points: Sequence[Point], trip_s: float, cta: float, ceiling: float) -> CrowdCurve:
    """The curve with the least squared relative misfit."""
    blocks = sorted({float(held) for held, *_ in points})

    def made(numbers: dict[str, float]) -> CrowdCurve:
        return CrowdCurve(
            blocks=blocks, bytes_per_s=[min(cta, numbers[f"b{at}"]) for at in blocks],
            bend=[min(max(numbers[f"p{at}"], _BENDS[0]), _BENDS[1]) for at in blocks], source="a trial",
            basis=Basis.MEASURED,
        )  # fmt: skip

    start = {name: value for at in blocks for name, value in ((f"b{at}", cta / 2), (f"p{at}", 4.0))}
    return made(descend(misfit_of(points, trip_s, ceiling, made), start))


def misfit_of(
    points: Sequence[Point], trip_s: float, ceiling: float, made: Callable[[dict[str, float]], CrowdCurve]
) -> Callable[[dict[str, float]], float]:  # fmt: skip
    """What is to be least."""

    def misfit(numbers: dict[str, float]) -> float:
        curve, off = made(numbers), 0.0
        for held, ctas, in_flight, rate in points:
            byte_rate, bend = curve.at(held)
            off += (bent(ctas * in_flight / (trip_s + in_flight / byte_rate), ceiling, bend) / rate - 1) ** 2
        return off

    return misfit
