"""Copies that one graph forks beside compute: what a calibration measured, and the same as the simulator plays it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import attrs

from sparda_core.errors import ProfileError
from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import Copy, idle_facts
from sparda_core.simulator.gpu_fit.quantities import KIB, MICRO
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.run import run_step
from sparda_core.work import Work

#: Bytes in flight that fill a link with nothing beside it.
FILLS = 3 * 128 * KIB


@attrs.frozen(kw_only=True)
class Met:
    """Compute and a copy beside each other, from their fork on: seconds of each, and of that compute alone."""

    compute_s: float
    copy_s: float
    alone_s: float

    @property
    def behind(self) -> float:
        """Seconds that compute, which outlasts the copy, falls behind in a second of it: of what takes f, 1 - 1 / f."""
        return (self.compute_s - self.alone_s) / self.copy_s


@attrs.frozen(kw_only=True)
class Forked:
    """One copy beside compute.

    row   what it ran beside
    copy  its setting and bytes
    seen  what was measured
    rate  bytes a second while it moves, its start and its end left out
    """

    row: Row
    copy: Copy
    seen: Met
    rate: float

    @property
    def rows(self) -> int:
        """Of the compute."""
        return int(self.row["rows"])


def forked(samples: Samples, beside: str, ceiling: float) -> Iterator[Forked]:
    """Copies beside compute that outlasts them.

    ceiling  bytes a second of copies that fill the link: what such copies alone take beyond that is start and end
    """
    started_s = start_s(samples, ceiling)
    for row in samples.rows("forked", beside=beside):
        for told in row["copies"]:
            seen, copy = _seen(row, told), _copy(told)
            if seen.copy_s < seen.compute_s:
                yield Forked(row=row, copy=copy, seen=seen, rate=told["bytes"] / (seen.copy_s - started_s))


def start_s(samples: Samples, ceiling: float) -> float:
    """Seconds of a copy's start and end, marks of the clock included: of those that fill the link with nothing beside.

    Raises ProfileError where there is none of so many thread blocks.
    """
    nothing = samples.one("forked", beside="nothing")
    full = [told for told in nothing["copies"] if told["ctas"] * told["in_flight_kib"] * KIB >= FILLS]
    if not full:
        raise ProfileError(f"samples: section 'forked' has no copy of {FILLS / KIB:g} KiB in flight; measure it again")
    found = [statistics.median(told["copy_us"]) * MICRO - told["bytes"] / ceiling for told in full]
    return max(0.0, float(statistics.median(found)))


def layers(samples: Samples, profile: GpuProfile) -> Iterator[tuple[Forked, Met]]:
    """Whole layers beside copies, seen and played; marks of the clock, which nobody plays, are taken off what is seen.

    `rate` is that of the copy from the fork to its end.
    """
    nothing = samples.one("forked", beside="nothing")
    marks_s = {
        _copy(told): _seen(nothing, told).copy_s - played(nothing, _copy(told), profile).copy_s
        for told in nothing["copies"]
    }
    for row in samples.rows("forked", beside="layer"):
        for told, alone in zip(row["copies"], nothing["copies"], strict=True):
            copy, seen = _copy(told), _seen(row, told)
            seen = attrs.evolve(seen, copy_s=seen.copy_s - marks_s[_copy(alone)])
            one = Forked(row=row, copy=copy, seen=seen, rate=told["bytes"] / seen.copy_s)
            yield one, played(row, copy, profile)


def _seen(row: Row, told: Row) -> Met:
    compute_s, copy_s, alone_s = (
        statistics.median(us) * MICRO for us in (told["compute_us"], told["copy_us"], row["us"])
    )
    return Met(compute_s=compute_s, copy_s=copy_s, alone_s=alone_s)


def _copy(told: Row) -> Copy:
    return Copy(
        ctas=int(told["ctas"]), in_flight=float(told["in_flight_kib"]) * KIB, block=float(told["block_kib"]) * KIB,
        total=float(told["bytes"]), late=False,
    )  # fmt: skip


def played(row: Row, copy: Copy, profile: GpuProfile) -> Met:
    """The same in the simulator."""
    compute_s, copy_s = _ends_s(row, copy, profile)
    return Met(compute_s=compute_s, copy_s=copy_s, alone_s=_ends_s(row, None, profile)[0])


def _ends_s(row: Row, copy: Copy | None, profile: GpuProfile) -> tuple[float, float]:
    """Seconds until compute ends, and until the copy does (0 without one), which are ready at the same moment."""
    works = [(str(op["kind"]), Work(**op["work"])) for _ in range(int(row["times"])) for op in row["ops"]]
    if copy is None and not works:
        return 0.0, 0.0
    ops = [Op(kind=kind, layer=at) for at, (kind, _) in enumerate(works)]
    beside = [Op(kind=Kind.STAGE, layer=0, lane=Lane.H2D)] if copy is not None else []

    def work(op: Op, _: StepFacts) -> Work:
        if op.lane == Lane.COMPUTE:
            return works[op.layer][1]
        assert copy is not None
        return copy.work()

    plan = StepPlan(
        ops=(*beside, *ops), phase=Phase.DECODE, runtime="forked", selector="forked", lead=1, resident_layers=0,
        engine="uva",
    )  # fmt: skip
    spans, _ = run_step(plan, idle_facts(max(1, int(row["rows"]))), work, profile)
    ends = {lane: max((span.end_ns for span in spans if span.lane == lane), default=0) for lane in Lane}
    return ends[Lane.COMPUTE] / 1e9, ends[Lane.H2D] / 1e9


def blocks_per_sm(row: Row, sms: int) -> int:
    """Thread blocks of a row's first kernel that some of so many SMs hold."""
    work = Work(**row["ops"][0]["work"])
    return int(min(-(-work.ctas // sms), work.ctas_per_sm))
