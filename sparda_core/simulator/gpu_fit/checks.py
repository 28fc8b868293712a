"""How well a fitted profile says what was measured, the points that it was not fitted to included."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import LAYERS, products_s
from sparda_core.simulator.gpu_fit.contention import in_domain, predicted
from sparda_core.simulator.gpu_fit.forked import layers
from sparda_core.simulator.gpu_fit.host_steps import layer_s
from sparda_core.simulator.gpu_fit.kernels import OWN
from sparda_core.simulator.gpu_fit.quantities import KIB, MICRO, middle
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import kind_alone_s
from sparda_core.simulator.launches import HOST_LIST_ENGINES
from sparda_core.work import Work


@attrs.frozen(kw_only=True)
class Check:
    """One comparison.

    unit    "share" of what was measured, or "points" of a slowdown: differences of times as long as alone
    median, worst  absolute differences; `where` the worst was
    """

    what: str
    unit: str
    points: int
    median: float
    worst: float
    where: str


def checks_of(samples: Samples, profile: GpuProfile) -> tuple[Check, ...]:
    """Products and kernels alone, copies alone, slowdowns of products beside copies, these copies' rates, layers and
    copies that a graph forks, and steps that the host interrupts for lists.
    """
    alone = [
        (products_s(row["rows"], profile)[0] / LAYERS / (middle(row["us_per_layer"], "products") * MICRO) - 1,
         f"{row['rows']} rows")
        for row in samples.rows("products")
    ]  # fmt: skip
    small = [
        (_alone_s(profile, row) / (middle(row["us"], "kernels") * MICRO) - 1, f"{row['kernel']}, {row['rows']} rows")
        for row in samples.rows("kernels")
        if any(kind == row["kind"] and row["kernel"] in names for kind, names in OWN.items())
    ]  # fmt: skip
    slow, rates, copied, beside = [], [], [], []
    for one, plays in layers(samples, profile):
        where = f"{one.copy.ctas} x {one.copy.in_flight / KIB:.0f} KiB, {one.rows} rows"
        copied.append((plays.copy_s / one.seen.copy_s - 1, where))
        beside.append((plays.compute_s / plays.alone_s - one.seen.compute_s / one.seen.alone_s, where))
    for row in samples.rows("beside products"):
        if row["slowdown"] and in_domain(row):
            says, rate = predicted(row, profile)
            where = f"{row['ctas']} x {row['in_flight_kib']} KiB, {row['rows']} rows{', first' * row['first']}"
            slow.append((says - row["slowdown"], where))
            rates.append((rate / row["gb_s"] - 1, where))
    return (
        _check("a layer's products", "share", alone), _check("kernels of selection and attention", "share", small),
        _check("gather alone", "share", _gathers(samples, profile)), _check("products beside copies", "points", slow),
        _check("copies beside products", "share", rates),
        _check("copies forked beside whole layers", "share", copied),
        _check("whole layers beside forked copies", "points", beside),
        _check("steps whose copies the host lists", "share", _host_steps(samples, profile)),
    )  # fmt: skip


def _host_steps(samples: Samples, profile: GpuProfile) -> list[tuple[float, str]]:
    whole_s = middle(samples.one("host lists", what="whole")["us"], "whole") * MICRO
    found = []
    for engine in HOST_LIST_ENGINES:
        for how in ("sync", "prefetch"):
            for row in samples.rows("host lists", what=f"{engine}, {how}"):
                says = layer_s(profile, engine, row["blocks"], row["bytes"], whole_s, early=how == "prefetch")
                where = f"{engine}, {how}, {row['blocks']} blocks"
                found.append((says / (middle(row["us"], where) * MICRO) - 1, where))
    return found


def _gathers(samples: Samples, profile: GpuProfile) -> list[tuple[float, str]]:
    assert profile.uva is not None
    found = []
    for row in samples.rows("gather"):
        says = profile.uva.bytes_per_s(
            row["ctas"], in_flight=row["in_flight_kib"] * 1024, piece=row["block_kib"] * 1024, repeated=row["repeated"]
        )
        where = f"{row['ctas']} x {row['in_flight_kib']} KiB, blocks of {row['block_kib']}"
        found.append((says / 1e9 / row["gb_s"] - 1, where + (", repeated" if row["repeated"] else "")))
    return found


def _alone_s(profile: GpuProfile, row: Row) -> float:
    return kind_alone_s(profile, Work(**row["work"]), row["kind"], row["rows"])


def _check(what: str, unit: str, found: Sequence[tuple[float, str]]) -> Check:
    off = [abs(value) for value, _ in found]
    worst = max(found, key=lambda item: abs(item[0]))
    return Check(
        what=what, unit=unit, points=len(found), median=statistics.median(off), worst=abs(worst[0]), where=worst[1]
    )
