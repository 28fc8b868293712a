"""From the rates of the gather kernel to its laws: one thread block, the ceiling, beside compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu_fit.crowds import crowd_table
from sparda_core.simulator.gpu_fit.forked import blocks_per_sm, forked
from sparda_core.simulator.gpu_fit.quantities import GIGA, KIB, Table, best, ladder, measured, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_parts import bent

#: Rates of so many thread blocks together, as a share of the ceiling, are those of one of them times their number.
_FREE = 0.6
#: Bends of a ceiling that are tried.
_BENDS = ladder(1.0, 32.0, 56)


def gather_table(samples: Samples) -> Table:
    """The section `uva`, but for what it costs compute. Raises ProfileError where samples are missing."""
    fresh = [row for row in samples.rows("gather", repeated=False) if row["block_kib"] <= row["in_flight_kib"]]
    ceiling = _ceiling(samples.rows("gather", repeated=False))
    trip_s, cta = one_block([_point(row) for row in fresh], ceiling)
    again_s = _repeated(samples.rows("gather", repeated=True), cta, ceiling, most=trip_s)
    table: Table = {
        "ceiling_bytes_per_s": measured(ceiling, "B/s", "thread blocks and bytes enough: median of the fastest rows"),
        "in_flight_bytes": {**measured(0, "B", "128 KiB a thread block by construction"), "value": 131072},
        "round_trip_s": measured(trip_s, "s", "fresh lists, every row below 0.6 of the ceiling: q / rate = t0 + q / b"),
        "repeated_round_trip_s": measured(again_s, "s", "the same on lists copied before, with the same b"),
        "cta_bytes_per_s": measured(cta, "B/s", "b of the same line"),
    }
    return table | _beside(samples, trip_s, cta, ceiling)


def _beside(samples: Samples, trip_s: float, cta: float, ceiling: float) -> Table:
    """Rates beside products, of copies that a graph forks and of late ones, and beside attention."""
    found: dict[int, list[tuple[int, float, float, int]]] = {}
    for one in forked(samples, "products", ceiling):
        found.setdefault(one.rows, []).append((one.copy.ctas, one.copy.in_flight, one.rate, one.rows))
    each = {rows: under_a_ceiling(points, trip_s, ceiling, most=cta) for rows, points in found.items()}
    most = max(rate for rate, _ in each.values())
    late = [(*_point(row), int(row["rows"])) for row in samples.rows("beside products", co="gather", first=False)
            if row["gb_s"]]  # fmt: skip
    rate, bends = under_a_ceiling(late, trip_s, ceiling, most=most)
    words = f"forked in one graph: {sum(map(len, found.values()))} rows at {_words(each)} rows"
    attention = [
        (blocks_per_sm(one.row, int(samples.one("machine")["sms"])), one.copy.ctas, one.copy.in_flight, one.rate)
        for one in forked(samples, "attend", ceiling)
    ]
    return {
        "beside_bytes_per_s": measured(most, "B/s", f"{words}, the most"),
        "beside_bend": _bends({rows: bend[rows] for rows, (_, bend) in each.items()}, words)
        | {"share": [rounded(each[rows][0] / most) for rows in sorted(each)]},
        "late_bytes_per_s": measured(rate, "B/s", f"come while they ran: {len(late)} rows at {_words(bends)} rows"),
        "late_bend": _bends(bends, f"the same {len(late)} rows"),
        "crowded": crowd_table(attention, trip_s, cta, ceiling),
    }


def _bends(bends: Mapping[int, float], source: str) -> Table:
    tokens = sorted(bends)
    return {
        "tokens": tokens, "bend": [rounded(bends[rows]) for rows in tokens], "source": source, "basis": "measured",
    }  # fmt: skip


def _words(bends: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(bends)))


def _point(row: Row) -> tuple[int, float, float]:
    """(thread blocks, bytes in flight of each, bytes a second)."""
    return int(row["ctas"]), float(row["in_flight_kib"]) * KIB, float(row["gb_s"]) * GIGA


def _ceiling(rows: Sequence[Row]) -> float:
    """The median of those within a twentieth of the fastest."""
    rates = [row["gb_s"] * GIGA for row in rows]
    return middle([rate for rate in rates if rate > 0.95 * max(rates)], "gathers")


def one_block(points: Sequence[tuple[int, float, float]], ceiling: float) -> tuple[float, float]:
    """(t0, b) of q / (t0 + q / b), the rate of one thread block, with the least squared relative misfit.

    points  (thread blocks, bytes in flight of each, bytes a second together)
    Raises ProfileError where not two sizes in flight lie well below the ceiling.
    """
    low = [(q, rate / n) for n, q, rate in points if rate < _FREE * ceiling or n == 1]
    if len({q for q, _ in low}) < 2:
        raise ProfileError("samples: section 'gather' needs two sizes in flight on fresh lists below the ceiling")
    q, rate = (np.array(column) for column in zip(*low, strict=True))
    # 1 = t0 rate / q + (1 / b) rate: the relative misfit of the predicted time.
    both, *_ = np.linalg.lstsq(np.stack([rate / q, rate], 1), np.ones_like(rate), rcond=None)
    trip_s, inverse = float(both[0]), float(both[1])
    if not trip_s > 0:
        raise ProfileError(f"samples: section 'gather' gives a round trip of {trip_s:g} s; measure again")
    return trip_s, 1 / inverse if inverse > 1e-13 else 1e13


def _repeated(rows: Sequence[Row], cta: float, ceiling: float, *, most: float) -> float:
    """The round trip of lists copied before, no longer than that of fresh ones."""
    trips = [q * n / rate - q / cta for n, q, rate in map(_point, rows) if rate < _FREE * ceiling or n == 1]
    return max(1e-7, min(most, middle(trips, "repeated lists below the ceiling")))


def under_a_ceiling(
    points: Sequence[tuple[int, float, float, int]], trip_s: float, ceiling: float, *, most: float
) -> tuple[float, dict[int, float]]:
    """(b, bend by rows of the products) of thread blocks beside products, with the least squared relative misfit.

    points  (thread blocks, bytes in flight of each, bytes a second together, rows of the products)
    most    b with nothing beside; compute speeds no copy up
    """
    if not points:
        raise ProfileError("samples: section 'beside products' has no gather that was a measure; measure it again")
    tokens = sorted({rows for *_, rows in points})
    table = {rows: _arrays([point for point in points if point[3] == rows]) for rows in tokens}

    def bend_of(rows: int, cta: float) -> float:
        return best(lambda p: _misfit(table[rows], trip_s, cta, ceiling, p), _BENDS)

    def total(cta: float) -> float:
        return sum(_misfit(table[rows], trip_s, cta, ceiling, bend_of(rows, cta)) for rows in tokens)

    cta = best(total, ladder(min(10e9, most), most, 60))
    cta = best(total, ladder(max(1e9, cta / 1.08), min(most, cta * 1.08), 33))
    return cta, {rows: bend_of(rows, cta) for rows in tokens}


Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def _arrays(points: Sequence[tuple[int, float, float, int]]) -> Arrays:
    n, q, rate, _ = (np.array(column, float) for column in zip(*points, strict=True))
    return n, q, rate


def _misfit(points: Arrays, trip_s: float, cta: float, ceiling: float, bend: float) -> float:
    return sum(
        float(bent(n * q / (trip_s + q / cta), ceiling, bend) / rate - 1) ** 2
        for n, q, rate in zip(*points, strict=True)
    )
