"""Fits a CPU profile: for each kind the time alone, and how much longer beside a busy other lane."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ProfileError
from sparda_core.plan import Kind
from sparda_core.simulator.cpu import DRIVERS, CpuProfile, KindCost
from sparda_core.simulator.cpu_samples import Sample
from sparda_core.simulator.quantity import Basis, Quantity

#: Fewest samples of a kind, and how many groups of similar drivers stand for them in the fit.
LEAST_SAMPLES, GROUPS = 3, 24
#: Drivers that differ by less than this cannot tell a fixed time from one that grows.
LEAST_SPREAD = 1.2
_TRANSFERS = (Kind.FETCH, Kind.STAGE)
#: Digits of a relative misfit; what differs behind them is rounding.
_ALIKE = 6

#: One number, or measurements of it.
Gaps = float | Sequence[float]
Floats = npt.NDArray[np.float64]


def fit_cpu_profile(
    samples: Iterable[Sample], overlap_samples: Iterable[Sample], machine: Mapping[str, object], *,
    dispatch_s: Gaps = 0.0, wake_s: Gaps = 0.0, copy_start_s: Gaps = 0.0, between_steps_s: float = 0.0,
    name: str = "cpu",
) -> CpuProfile:  # fmt: skip
    """A profile of this machine.

    samples          operations with the other lane idle
    overlap_samples  operations beside a busy other lane; `busy` says for which share of their time
    machine          what it was measured on, in words; `ram_bytes` if it is not this machine's memory
    dispatch_s       from one operation to the next; wake_s and copy_start_s as in CpuProfile: numbers, or
                     the gaps that CpuSamples holds
    A kind that never ran beside a busy lane takes the median slowdown of the kinds of its side.
    Raises ProfileError where a kind has too few samples.
    """
    alone = _by_key(samples)
    if not alone:
        raise ProfileError("no samples: measure at least one step with the copy lane idle")
    costs = {key: _fit_alone(key, group) for key, group in sorted(alone.items())}
    slowdowns = _slowdowns(costs, _by_key(overlap_samples))
    words = {str(key): str(value) for key, value in machine.items() if key != "ram_bytes"}
    source = f"{sum(map(len, alone.values()))} operations timed on this machine"
    return CpuProfile(
        name=name, title=words.get("cpu", "this machine's CPU"), date=_today(),
        ram_bytes=_measured(float(str(machine.get("ram_bytes", _ram_bytes()))), "B", "reported by the system"),
        dispatch_s=_measured(_typical(dispatch_s), "s", source), wake_s=_measured(_typical(wake_s), "s", source),
        copy_start_s=_measured(_typical(copy_start_s), "s", source),
        between_steps_s=_measured(between_steps_s, "s", source),
        costs={key: attrs.evolve(cost, slowdown=slowdowns[key]) for key, cost in costs.items()}, machine=words,
    )  # fmt: skip


def _by_key(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.seconds > 0:
            raise ProfileError(f"sample of {sample.key!r} took {sample.seconds} s; must be > 0")
        groups.setdefault(sample.key, []).append(sample)
    return groups


def _fit_alone(key: str, samples: Sequence[Sample]) -> KindCost:
    """The driver, fixed time and time per unit with the least relative misfit."""
    if len(samples) < LEAST_SAMPLES:
        raise ProfileError(f"{key!r} has {len(samples)} samples alone, needs {LEAST_SAMPLES}: measure more steps")
    seconds = np.array([sample.seconds for sample in samples])
    fits = []
    for driver in ("h2d_bytes",) if _is_transfer(key) else DRIVERS:
        units = np.array([float(getattr(sample.work, driver)) for sample in samples])
        if units.max() > 0:
            fixed_s, per_unit_s = _line(*_medians(units, seconds), transfer=_is_transfer(key))
            error = float(np.median(np.abs(fixed_s + per_unit_s * units - seconds) / seconds))
            fits.append((error, fixed_s, per_unit_s, driver))
    if not fits:
        level_s = float(np.median(seconds))
        fits.append((float(np.median(np.abs(level_s - seconds) / seconds)), level_s, 0.0, DRIVERS[0]))
    # The order of DRIVERS decides between equal fits, bytes first: of one row a product's FLOPs and bytes tell the
    # same, but two rows read its weights once.
    error, fixed_s, per_unit_s, driver = min(fits, key=lambda fit: round(fit[0], _ALIKE))
    return KindCost(fixed_s=fixed_s, driver=driver, per_unit_s=per_unit_s, samples=len(samples), error=error)


def _is_transfer(key: str) -> bool:
    return key.rpartition("/")[2] in _TRANSFERS


def _medians(units: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Medians of time in groups of similar drivers: an operation that was interrupted moves none of them."""
    order = np.argsort(units, kind="stable")
    groups = np.array_split(order, min(GROUPS, max(1, len(order) // LEAST_SAMPLES)))
    return (
        np.array([np.median(units[group]) for group in groups]),
        np.array([np.median(seconds[group]) for group in groups]),
    )


def _line(units: Floats, seconds: Floats, *, transfer: bool) -> tuple[float, float]:
    """(fixed_s, per_unit_s) >= 0 with the least squared relative misfit; through 0 where the drivers hardly differ."""
    x, one = units / seconds, 1 / seconds
    through_zero = 0.0, float(x.sum() / (x @ x))
    if units.max() < LEAST_SPREAD * units.min():
        return through_zero
    level = float(one.sum() / (one @ one)), 0.0
    both, *_ = np.linalg.lstsq(np.stack([one, x], 1), np.ones_like(x), rcond=None)
    best = float(both[0]), float(both[1])
    if min(best) >= 0 and (best[1] > 0 or not transfer):
        return best
    return min(
        (through_zero,) if transfer else (through_zero, level),
        key=lambda line: float(np.square(line[0] * one + line[1] * x - 1).sum()),
    )


def _slowdowns(costs: Mapping[str, KindCost], beside: Mapping[str, Sequence[Sample]]) -> dict[str, float]:
    found = {key: _slowdown(cost, beside[key]) for key, cost in costs.items() if key in beside}
    out = {}
    for key in costs:
        side = [value for other, value in found.items() if _is_transfer(other) == _is_transfer(key)]
        out[key] = found.get(key, statistics.median(side) if side else 1.0)
    return out


def _slowdown(cost: KindCost, samples: Sequence[Sample]) -> float:
    """Median over samples; an operation of T seconds alone that ran `busy` of its time at 1/s took
    (1 - busy) + busy / s of its time for T.
    """
    each = []
    for sample in samples:
        beside_s = sample.busy * sample.seconds
        done_beside_s = cost.seconds(sample.work) - (sample.seconds - beside_s)
        # Less done than nothing: a stray sample, as slow as can be told.
        each.append(beside_s / done_beside_s if done_beside_s > 0 else float("inf"))
    value = statistics.median(each)
    if value == float("inf"):
        raise ProfileError(
            f"{len(samples)} overlapped samples took far longer than alone: measure again, with the machine quiet"
        )
    return max(1.0, value)


def _typical(gaps: Gaps) -> float:
    """The mean of the middle half: gaps add up, but an interruption is no gap."""
    if isinstance(gaps, int | float):
        return float(gaps)
    if not gaps:
        return 0.0
    ordered = sorted(gaps)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _measured(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, source=source, basis=Basis.MEASURED)


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _ram_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
