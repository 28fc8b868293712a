"""The bars, declared: which cells, which statistic of their errors, and how large it may be. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.validate.summary import ninth_decile
from sparda_core.bench.verdict.judged import ORDER, OVERLAPPED, REPLAY, Judged, Verdict
from sparda_core.simulator.step_models import FULL, LONGER

#: Of absolute errors.
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "p90": ninth_decile,
    "max": max,
}


@attrs.frozen(kw_only=True)
class Limit:
    """One bar on absolute errors of tokens/s.

    tier       of cells; REPLAY: of every cell with facts of its own, predicted from these
    statistic  a name of STATISTICS
    most       what it may be, as a share
    ambition   told, and failed by nobody
    """

    tier: str
    statistic: str
    most: float
    ambition: bool = False


#: On a GPU. "earlier" cells were seen before any bar was set: they are held to what interpolated ones are.
GPU_LIMITS = (
    Limit(tier=REPLAY, statistic="max", most=0.02),
    Limit(tier=REPLAY, statistic="median", most=0.005, ambition=True),
    Limit(tier="interpolated", statistic="median", most=0.03), Limit(tier="interpolated", statistic="p90", most=0.07),
    Limit(tier="combination", statistic="median", most=0.05), Limit(tier="combination", statistic="p90", most=0.10),
    Limit(tier="axis", statistic="median", most=0.06), Limit(tier="axis", statistic="p90", most=0.12),
    Limit(tier="earlier", statistic="median", most=0.03), Limit(tier="earlier", statistic="p90", most=0.07),
)  # fmt: skip
#: On a CPU, whose cores do other work besides and whose clock moves.
CPU_LIMITS = (
    Limit(tier="interpolated", statistic="median", most=0.10), Limit(tier="interpolated", statistic="p90", most=0.25),
    Limit(tier="combination", statistic="median", most=0.10), Limit(tier="combination", statistic="p90", most=0.25),
    Limit(tier="axis", statistic="median", most=0.10), Limit(tier="axis", statistic="p90", most=0.25),
)  # fmt: skip
#: On balanced cells whose plan overlaps, the full model's median error is at most this share of max(copy, compute)'s.
HALVED = 0.5
ALL = "all"


@attrs.frozen(kw_only=True)
class JudgedBar:
    """A bar, the cells behind it, and whether it is only an ambition."""

    bar: Bar
    cells: int
    ambition: bool = False


def limits_of(verdict: Verdict) -> tuple[Limit, ...]:
    """The bars of a device."""
    return CPU_LIMITS if verdict.device == "cpu" else GPU_LIMITS


def judge(verdict: Verdict) -> list[JudgedBar]:
    """Every bar that the cells allow to judge: over all cells of a tier, then stratum by stratum."""
    found = [one for limit in limits_of(verdict) for one in _by_stratum(limit, verdict.measured)]
    return [*found, *_halved(verdict.measured)]


def _by_stratum(limit: Limit, cells: Sequence[Judged]) -> Iterator[JudgedBar]:
    of_tier = [cell for cell in cells if limit.tier in (REPLAY, cell.tier) and _off(limit, cell) is not None]
    for stratum, some in strata_of(of_tier).items():
        errors = [abs(_off(limit, cell) or 0.0) for cell in some]
        word = " (ambition)" if limit.ambition else ""
        bar = Bar(name=f"{limit.tier}: {limit.statistic} error{word}", where=stratum,
                  figure=STATISTICS[limit.statistic](errors), bound=limit.most, least=False)  # fmt: skip
        yield JudgedBar(bar=bar, cells=len(some), ambition=limit.ambition)


def _off(limit: Limit, cell: Judged) -> float | None:
    return cell.replay_error if limit.tier == REPLAY else cell.error()


def _halved(cells: Sequence[Judged]) -> Iterator[JudgedBar]:
    known = [cell for cell in cells if OVERLAPPED in cell.strata and cell.error(LONGER) is not None]
    if known:
        full, simple = (median_error(known, model) for model in (FULL, LONGER))
        bar = Bar(name=f"median error / that of {LONGER}", where=OVERLAPPED, figure=full / simple if simple else 1.0,
                  bound=HALVED, least=False)  # fmt: skip
        yield JudgedBar(bar=bar, cells=len(known))


def median_error(cells: Sequence[Judged], model: str = FULL) -> float:
    """Median absolute error of tokens/s; raises StatisticsError where no cell has one."""
    return statistics.median(abs(error) for cell in cells if (error := cell.error(model)) is not None)


def strata_of(cells: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Cells by stratum, all of them first; a cell may be in several, and a stratum without cells is left out."""
    found = {stratum: [cell for cell in cells if stratum in cell.strata] for stratum in ORDER}
    return {stratum: some for stratum, some in {ALL: list(cells), **found}.items() if some}
