"""From products beside copies to what copies take of memory, what bytes in flight drag, and what a wave costs.

Each number is fitted where nothing else plays a part, and by the simulator itself: it is the value with which the
simulator plays what was measured. The copy engine holds no SM: it says what a byte takes of memory. Two thread blocks
find SMs that products leave, wherever they lie: they say what bytes in flight drag, a small number, told where graphs
with and without a copy were run in turn. The fewest that do not say what a wave costs: of copies that a graph forks
beside a step's own products, and at more rows than these were forked at of copies that were there when the products of
another layer began.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Sequence

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import PRODUCTS, Copy, rate, slowdown
from sparda_core.simulator.gpu_fit.forked import forked, played
from sparda_core.simulator.gpu_fit.quantities import KIB, MICRO, middle, root, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.quantity import Basis, Quantity, WaveShare

#: Thread blocks of 128 KiB that cost no wave.
FREE = 2
WHOLE_KIB = 128
#: Bytes that all thread blocks together may have in flight: more stalls every kernel (docs/profiles.md).
MOST_IN_FLIGHT = 2**20
#: Rows of products whose FLOPs are no matter: what memory costs shows there alone, and the clock does not.
_MEMORY_BOUND = 64
#: Two misfits of a slowdown are as good as each other within so much.
_TELLS_APART = 3e-3
#: A slowdown is met within so much.
_WITHIN = 2e-4


@attrs.frozen(kw_only=True)
class Point:
    """Products of so many rows beside thread blocks that each keep so much in flight: seen, and how it is played.

    seen, plays  seconds by which they fall behind in a second beside it: 1 - 1 / f where they take f times as long
    product_s    seconds of one product alone
    """

    rows: int
    ctas: int
    in_flight: float
    seen: float
    product_s: float
    plays: Callable[[GpuProfile], float]

    def off(self, profile: GpuProfile) -> float:
        """Played less seen."""
        return self.plays(profile) - self.seen

    @property
    def where(self) -> str:
        """In words."""
        return f"{self.ctas} x {self.in_flight / KIB:.0f} KiB"


def fit_contention(profile: GpuProfile, samples: Samples) -> GpuProfile:
    """The same profile with link_hbm_weight, drag and wave_share as measured.

    Raises ProfileError where the rows that they are fitted to are missing.
    """
    profile = _weight(profile, _few([_there(row) for row in samples.rows("beside products", co="engine", first=False)]))
    two = samples.rows("beside products", co="gather", ctas=FREE, in_flight_kib=WHOLE_KIB)
    free = _few([_there(row) for row in two])
    more = _forked(profile, samples)
    if not more:
        raise ProfileError(
            f"samples: section 'forked' has no copy of more than {FREE} thread blocks that products outlast; measure "
            "it again"
        )
    most = max(point.rows for point in more)
    first = [_there(row) for row in _measures(samples) if row["first"] and row["rows"] > most]
    waves = [*more, *(point for point in first if point.ctas > FREE)]
    found = [_waves(_drag(profile, free, many * WHOLE_KIB * KIB), waves) for many in (2, 4, 8)]
    off = [_misfit(one, _few(waves)) for one in found]
    # The fewest bytes that say it.
    return next(one for one, here in zip(found, off, strict=True) if here <= min(off) + _TELLS_APART)


def _forked(profile: GpuProfile, samples: Samples) -> list[Point]:
    """Products beside copies of more thread blocks than cost no wave."""
    assert profile.uva is not None
    return [
        Point(
            rows=one.rows, ctas=one.copy.ctas, in_flight=one.copy.in_flight, seen=one.seen.behind,
            product_s=one.seen.alone_s / (one.row["times"] * len(one.row["ops"])),
            plays=functools.partial(_played, one.row, one.copy),
        )
        for one in forked(samples, "products", profile.uva.ceiling_bytes_per_s.value) if one.copy.ctas > FREE
    ]  # fmt: skip


def _played(row: Row, copy: Copy, profile: GpuProfile) -> float:
    return played(row, copy, profile).behind


def _there(row: Row) -> Point:
    """Of a row of `beside products`."""
    copy, rows = copy_of(row), int(row["rows"])
    seen = middle([row["slowdown"]], f"products of {rows} rows beside {row['ctas']} thread blocks")
    return Point(
        rows=rows, ctas=copy.ctas, in_flight=copy.in_flight, seen=1 - 1 / seen,
        product_s=row["alone_us_per_layer"] * MICRO / len(PRODUCTS),
        plays=lambda profile: 1 - 1 / slowdown(copy, rows, profile),
    )  # fmt: skip


def in_domain(row: Row) -> bool:
    """Whether a copy has no more bytes in flight than a prediction takes."""
    return float(row["ctas"] * row["in_flight_kib"] * KIB) <= MOST_IN_FLIGHT


def _few(points: list[Point]) -> list[Point]:
    return [point for point in points if point.rows <= _MEMORY_BOUND] or points


def copy_of(row: Row) -> Copy:
    """The copy of a row of `beside products`."""
    return Copy(
        ctas=int(row["ctas"]), in_flight=float(row["in_flight_kib"] or WHOLE_KIB) * KIB,
        block=float(row["block_kib"] or 32) * KIB, late=not row["first"],
    )  # fmt: skip


def predicted(row: Row, profile: GpuProfile) -> tuple[float, float]:
    """(slowdown, GB/s) of a row of `beside products`."""
    copy, rows = copy_of(row), int(row["rows"])
    return slowdown(copy, rows, profile), rate(copy, rows, profile) / 1e9


def _measures(samples: Samples) -> list[Row]:
    return [row for row in samples.rows("beside products") if row["slowdown"] and in_domain(row)]


def _misfit(profile: GpuProfile, points: Iterable[Point]) -> float:
    return statistics.fmean(abs(point.off(profile)) for point in points)


def _mean_off(profile: GpuProfile, points: Iterable[Point]) -> float:
    return statistics.fmean(point.off(profile) for point in points)


def _told(points: Iterable[Point]) -> str:
    return ", ".join(f"{1 / (1 - point.seen):.3f} at {point.rows}" for point in points)


def _weight(profile: GpuProfile, points: list[Point]) -> GpuProfile:
    def with_weight(value: float) -> GpuProfile:
        weight = _quantity(value, "1", f"products beside the copy engine: {_told(points)} rows")
        return attrs.evolve(profile, memory=attrs.evolve(profile.memory, link_hbm_weight=weight))

    return _solved(with_weight, 0.0, 20.0, lambda made: _mean_off(made, points))


def _drag(profile: GpuProfile, points: list[Point], most: float) -> GpuProfile:
    assert profile.uva is not None

    def with_drag(value: float) -> GpuProfile:
        assert profile.uva is not None
        uva = attrs.evolve(
            profile.uva,
            drag_per_byte=_quantity(value, "1/B", f"products beside {FREE} x {WHOLE_KIB} KiB: {_told(points)} rows"),
            drag_most_bytes=_quantity(most, "B", "of 2, 4 and 8 x 128 KiB what says more thread blocks best"),
        )  # fmt: skip
        return attrs.evolve(profile, uva=uva)

    return _solved(with_drag, 0.0, 1e-6, lambda made: _mean_off(made, points))


def _waves(profile: GpuProfile, points: Sequence[Point]) -> GpuProfile:
    """A price for each number of rows, one after the other: each is of its own products."""
    by_rows = {tokens: _dearest(profile, tokens, points) for tokens in sorted({point.rows for point in points})}
    if not by_rows:
        raise ProfileError(f"samples: no copy of more than {FREE} thread blocks beside products; measure 'forked'")
    share = dict.fromkeys(by_rows, 0.0)
    for tokens, point in by_rows.items():

        def with_share(value: float, tokens: int = tokens) -> GpuProfile:
            return _with_waves(profile, share | {tokens: value}, by_rows)

        solved = _solved(with_share, 0.0, 4.0, point.off)
        share[tokens] = solved.compute.wave_share.at(tokens)
    return _with_waves(profile, share, by_rows)


def _dearest(profile: GpuProfile, tokens: int, points: Sequence[Point]) -> Point:
    """The copy of the fewest thread blocks for which a wave's price matters; raises ProfileError where none does."""
    own = [point for point in points if point.rows == tokens]
    for point in sorted(own, key=lambda point: (point.ctas, -point.in_flight)):
        none, some = (point.off(_with_waves(profile, {tokens: share}, {tokens: point})) for share in (0.0, 1.0))
        if some > none + _TELLS_APART:
            return point
    raise ProfileError(
        f"samples: no copy that was there before products of {tokens} rows costs these a wave; measure "
        "'forked' and 'beside products' with more thread blocks"
    )


def _with_waves(profile: GpuProfile, share: dict[int, float], points: dict[int, Point]) -> GpuProfile:
    copies = sorted({point.where for point in points.values()})
    told = _told(points[tokens] for tokens in sorted(points))
    waves = WaveShare(
        tokens=tuple(map(float, sorted(share))), share=tuple(rounded(share[tokens]) for tokens in sorted(share)),
        source=f"products beside {', '.join(copies)}: {told} rows", basis=Basis.MEASURED,
        took_s=tuple(rounded(points[tokens].product_s) for tokens in sorted(points)),
    )  # fmt: skip
    return attrs.evolve(profile, compute=attrs.evolve(profile.compute, wave_share=waves))


def _solved(
    make: Callable[[float], GpuProfile], low: float, high: float, off: Callable[[GpuProfile], float]
) -> GpuProfile:
    return make(rounded(root(lambda value: off(make(value)), low, high, within=_WITHIN)))


def _quantity(value: float, unit: str, source: str) -> Quantity:
    if not value >= 0:
        raise ProfileError(f"samples give {value} for: {source}; measure again")
    return Quantity(value=value, unit=unit, source=source, basis=Basis.MEASURED)
