"""From kernels of ours that read much to their rate, how they get there, and what their rounds on the SMs cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import kind_alone_s
from sparda_core.simulator.kernel_parts import Kernels
from sparda_core.simulator.quantity import Basis, Quantity
from sparda_core.work import Work

#: Kind -> kernels whose times say how it reads.
READERS = {
    "attend": ("attend", "attend all"), "score": ("score forecast", "score proxy", "score query"),
}  # fmt: skip
#: Numbers of a kind that are fitted beside its rate; where each begins.
_FITTED = {
    "attend": {"attend_s": 1e-6, "attend_ramp_s": 2e-6, "attend_round_s": 5e-6},
    "score": {"score_s": 1e-6, "score_ramp_s": 2e-6, "score_passed": 1.5},
}  # fmt: skip
#: Kinds of which something is left to be told by rows, which is never less than nothing: so too slow counts more.
_REST, _OVER = ("attend",), 4.0
#: Shares of the fastest kernel's rate from which a rate is searched, each in turn.
_RATES = (0.9, 0.93, 0.96, 0.99)
#: Kernels of a kind that are too few to tell rounds from rates.
_LEAST = 10
_LEAST_S = 1e-8
#: The first step of the search, and the last, as shares.
_WIDE, _NARROW = 0.5, 0.002

Numbers = dict[str, float]
#: What a prediction of a kernel asks for, and the seconds that it took.
Point = tuple[tuple[Work, str, int], float]


def reading_table(samples: Samples, profile: GpuProfile) -> Table:
    """Numbers of the section `kernels`; empty where few such kernels were timed, as in older samples."""
    if not tells(samples):
        return {}
    found: Numbers = {}
    for kind in READERS:
        found |= _fitted(kind, [_point(kind, row) for row in _rows(samples, kind)], profile)
    words = "what the times of such kernels alone fit best"
    # Less than a clock tells is nothing.
    kept = {name: value if value >= _LEAST_S or _unit(name) != "s" else 0.0 for name, value in found.items()}
    table = {name: measured(value, _unit(name), words) for name, value in kept.items()}
    told = attrs.evolve(profile, kernels=_with(profile.kernels, {name: q["value"] for name, q in table.items()}))
    return {**table, "attend_rows": _by_rows(samples, told)}


def _fitted(kind: str, points: Sequence[Point], profile: GpuProfile) -> Numbers:
    """Numbers of a kind with the least sum of relative misfits, from several rates in turn."""

    def misfit(numbers: Numbers) -> float:
        told = attrs.evolve(profile, kernels=_with(profile.kernels, numbers))
        off = [kind_alone_s(told, *work) / took_s - 1 for work, took_s in points]
        return sum(over * _OVER if kind in _REST and over > 0 else abs(over) for over in off)

    most = profile.memory.hbm_bytes_per_s.value
    starts = [{f"{kind}_bytes_per_s": share * most, **_FITTED[kind]} for share in _RATES]
    return min((descend(misfit, start) for start in starts), key=misfit)


def tells(samples: Samples) -> bool:
    """Whether enough kernels were timed to tell rounds from rates."""
    return all(len(_rows(samples, kind)) >= _LEAST for kind in READERS)


def _rows(samples: Samples, kind: str) -> list[Row]:
    return [row for row in samples.rows("kernels") if row["kernel"] in READERS[kind]]


def _by_rows(samples: Samples, profile: GpuProfile) -> Table:
    """What is left of attention at the usual budget, and what a launch of it takes, by rows."""
    found, kernels = [], profile.kernels
    assert kernels is not None
    for row in sorted(samples.rows("kernels", kernel="attend"), key=lambda row: int(row["rows"])):
        (work, kind, count), took_s = _point("attend", row)
        own_s = took_s - kind_alone_s(profile, work, kind, count) + kernels.own_s(kind, work, count, in_turn=False)
        found.append((float(row["rows"]), rounded(max(0.0, own_s))))
    return {
        "tokens": [rows for rows, _ in found], "s": [own_s for _, own_s in found], "basis": "measured",
        "source": "attend, less gaps, bytes and what its rounds take",
    }  # fmt: skip


def _point(kind: str, row: Row) -> Point:
    """Of a row."""
    return (Work(**row["work"]), kind, int(row["rows"])), middle(row["us"], row["kernel"]) * MICRO


def _unit(name: str) -> str:
    if name.endswith("bytes_per_s"):
        return "B/s"
    return "s" if name.endswith("_s") else "1"


def _with(kernels: Kernels | None, numbers: Numbers) -> Kernels:
    """The section with other numbers in place of its own."""
    made: dict[str, Any] = {
        name: Quantity(value=value, unit=_unit(name), source="a trial", basis=Basis.MEASURED)
        for name, value in numbers.items()
    }
    return attrs.evolve(kernels or Kernels(), **made)


def descend(of: Callable[[Numbers], float], start: Numbers) -> Numbers:
    """Numbers > 0 with the least misfit near `start`: one after another up or down by a share, less and less."""
    best, least, share = dict(start), of(start), _WIDE
    while share > _NARROW:
        moved = False
        for name in start:
            for factor in (1 + share, 1 / (1 + share)):
                trial = {**best, name: best[name] * factor}
                misfit = of(trial)
                if misfit < least:
                    best, least, moved = trial, misfit, True
                    break
        if not moved:
            share /= 2
    return best
