"""From products beside copies to what copies take of memory, what bytes in flight drag, and what a wave costs.

Each number is fitted where nothing else plays a part, and by the simulator itself: it is the value with which the
simulator plays what was measured. The copy engine holds no SM: it says what a byte takes of memory. Two thread blocks
find SMs that products leave, wherever they lie: they say what bytes in flight drag. The fewest that do not, and were
there when the products began, say what a wave costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import Copy, rate, slowdown
from sparda_core.simulator.gpu_fit.quantities import KIB, middle, root, rounded
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


def fit_contention(profile: GpuProfile, samples: Samples) -> GpuProfile:
    """The same profile with link_hbm_weight, drag and wave_share as measured.

    Raises ProfileError where the rows that they are fitted to are missing.
    """
    engine = samples.rows("beside products", co="engine", first=False)
    profile = _weight(profile, _few(engine))
    free = _few(samples.rows("beside products", co="gather", ctas=FREE, in_flight_kib=WHOLE_KIB))
    waves = [row for row in _measures(samples) if row["first"] and row["ctas"] > FREE]
    found = [_waves(_drag(profile, free, most * WHOLE_KIB * KIB), waves) for most in (2, 4, 8)]
    off = [_misfit(one, _few(waves)) for one in found]
    # The fewest bytes that say it.
    return next(one for one, here in zip(found, off, strict=True) if here <= min(off) + _TELLS_APART)


def in_domain(row: Row) -> bool:
    """Whether a copy has no more bytes in flight than a prediction takes."""
    return float(row["ctas"] * row["in_flight_kib"] * KIB) <= MOST_IN_FLIGHT


def _few(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["rows"] <= _MEMORY_BOUND] or rows


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


def _misfit(profile: GpuProfile, rows: Iterable[Row]) -> float:
    return statistics.fmean(abs(_off(profile, row)) for row in rows)


def _off(profile: GpuProfile, row: Row) -> float:
    return slowdown(copy_of(row), int(row["rows"]), profile) - _slow(row)


def _mean_off(profile: GpuProfile, rows: list[Row]) -> float:
    return statistics.fmean(_off(profile, row) for row in rows)


def _slow(row: Row) -> float:
    return middle([row["slowdown"]], f"products of {row['rows']} rows beside {row['ctas']} thread blocks")


def _weight(profile: GpuProfile, rows: list[Row]) -> GpuProfile:
    def with_weight(value: float) -> GpuProfile:
        told = ", ".join(f"{_slow(row):.3f} at {row['rows']}" for row in rows)
        weight = _quantity(value, "1", f"products beside the copy engine: {told} rows")
        return attrs.evolve(profile, memory=attrs.evolve(profile.memory, link_hbm_weight=weight))

    return _solved(with_weight, 0.0, 20.0, lambda made: _mean_off(made, rows))


def _drag(profile: GpuProfile, rows: list[Row], most: float) -> GpuProfile:
    assert profile.uva is not None
    told = ", ".join(f"{_slow(row):.3f} at {row['rows']}" for row in rows)

    def with_drag(value: float) -> GpuProfile:
        assert profile.uva is not None
        uva = attrs.evolve(
            profile.uva,
            drag_per_byte=_quantity(value, "1/B", f"products beside {FREE} x {WHOLE_KIB} KiB: {told} rows"),
            drag_most_bytes=_quantity(most, "B", "of 2, 4 and 8 x 128 KiB what says the copies there first best"),
        )  # fmt: skip
        return attrs.evolve(profile, uva=uva)

    return _solved(with_drag, 0.0, 1e-6, lambda made: _mean_off(made, rows))


def _waves(profile: GpuProfile, rows: Sequence[Row]) -> GpuProfile:
    """A price for each number of rows, one after the other: each is of its own products."""
    by_rows = {tokens: _dearest(profile, tokens, rows) for tokens in sorted({int(row["rows"]) for row in rows})}
    if not by_rows:
        raise ProfileError("samples: section 'beside products' has no copy that was there first; measure it again")
    share = dict.fromkeys(by_rows, 0.0)
    for tokens, row in by_rows.items():

        def with_share(value: float, tokens: int = tokens) -> GpuProfile:
            return _with_waves(profile, share | {tokens: value}, by_rows)

        def off(made: GpuProfile, row: Row = row) -> float:
            return _off(made, row)

        solved = _solved(with_share, 0.0, 4.0, off)
        share[tokens] = solved.compute.wave_share.at(tokens)
    return _with_waves(profile, share, by_rows)


def _dearest(profile: GpuProfile, tokens: int, rows: Sequence[Row]) -> Row:
    """The copy of the fewest thread blocks for which a wave's price matters; raises ProfileError where none does."""
    own = [row for row in rows if row["rows"] == tokens]
    for row in sorted(own, key=lambda row: (row["ctas"], row["in_flight_kib"])):
        none, some = (_off(_with_waves(profile, {tokens: share}, {tokens: row}), row) for share in (0.0, 1.0))
        if some > none + _TELLS_APART:
            return row
    raise ProfileError(
        f"samples: no copy that was there before products of {tokens} rows costs these a wave; measure "
        "'beside products' with more thread blocks"
    )


def _with_waves(profile: GpuProfile, share: dict[int, float], rows: dict[int, Row]) -> GpuProfile:
    told = ", ".join(f"{_slow(rows[tokens]):.3f}" for tokens in sorted(rows))
    copies = ", ".join(f"{rows[tokens]['ctas']} x {rows[tokens]['in_flight_kib']} KiB" for tokens in sorted(rows))
    waves = WaveShare(
        tokens=tuple(map(float, sorted(share))), share=tuple(rounded(share[tokens]) for tokens in sorted(share)),
        source=f"products beside copies there first, {copies}: {told} times as long", basis=Basis.MEASURED,
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
