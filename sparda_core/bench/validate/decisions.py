"""Whether predictions decide as measurements do: order, regret, crossovers. Pure functions of rates. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import attrs

from sparda_core.errors import ConfigError


@attrs.frozen(kw_only=True)
class Order:
    """How two orders of the same options agree.

    tau         Kendall's tau: (concordant - discordant) / pairs told apart; None where there are none
    level       pairs left out, because the measurement cannot tell them apart
    discordant  pairs in the wrong order, (better as measured, better as predicted)
    """

    concordant: int
    level: int
    discordant: tuple[tuple[str, str], ...]

    @property
    def pairs(self) -> int:
        """Pairs told apart."""
        return self.concordant + len(self.discordant)

    @property
    def tau(self) -> float | None:
        """See the class."""
        return (self.concordant - len(self.discordant)) / self.pairs if self.pairs else None


def kendall_tau(measured: Mapping[str, float], predicted: Mapping[str, float], *, resolution: float = 0.0) -> Order:
    """Agreement of predicted with measured rates, more is better, by option.

    resolution  pairs whose measured rates differ by no more than this share are level: they count for nothing.
    A predicted tie of a pair that is told apart counts as discordant: it decides nothing.
    Raises ConfigError unless both speak of the same options, with finite rates > 0.
    """
    _check(measured, predicted)
    concordant, level, wrong = 0, 0, []
    for a, b in combinations(measured, 2):
        better, worse = (a, b) if measured[a] >= measured[b] else (b, a)
        if measured[better] / measured[worse] - 1 <= resolution:
            level += 1
        elif predicted[better] > predicted[worse]:
            concordant += 1
        else:
            wrong.append((better, worse))
    return Order(concordant=concordant, level=level, discordant=tuple(wrong))


@attrs.frozen(kw_only=True)
class Regret:
    """What following the prediction costs.

    recommended, best  the option predicted to be fastest, and the one that was
    share   measured rate given away, as a share of the best one's
    """

    recommended: str
    best: str
    share: float


def regret(measured: Mapping[str, float], predicted: Mapping[str, float], *, level: float = 0.0) -> Regret:
    """Regret of the option with the highest predicted rate.

    level  options whose predicted rates are within this share of the highest are level, and the first of them as
           listed is recommended: list the cheapest first, as `sparda advise` names the smallest of equals
    Raises as `kendall_tau`.
    """
    _check(measured, predicted)
    top = max(predicted.values())
    recommended = next(name for name in measured if predicted[name] >= top / (1 + level))
    best = max(measured, key=lambda name: measured[name])
    return Regret(recommended=recommended, best=best, share=1 - measured[recommended] / measured[best])


@attrs.frozen(kw_only=True)
class Crossing:
    """Where a second option overtakes a first one along a grid.

    at   index of the first grid point at which the second is ahead to the end of the grid; None: never
    """

    measured_at: int | None
    predicted_at: int | None
    points: int

    @property
    def steps_apart(self) -> int:
        """Grid steps between the two; "never" lies one step beyond the grid."""
        ends = [self.points if at is None else at for at in (self.measured_at, self.predicted_at)]
        return abs(ends[0] - ends[1])


def crossing(
    first: Sequence[float], second: Sequence[float], predicted_first: Sequence[float], predicted_second: Sequence[float]
) -> Crossing:  # fmt: skip
    """Compare crossovers of measured and predicted rates, more is better, on one grid.

    Raises ConfigError for series of different lengths or without a point.
    """
    lengths = {len(series) for series in (first, second, predicted_first, predicted_second)}
    if len(lengths) != 1 or 0 in lengths:
        raise ConfigError(f"series of {sorted(lengths)} points have no common grid; give each the same points")
    return Crossing(
        measured_at=_overtakes(first, second), predicted_at=_overtakes(predicted_first, predicted_second),
        points=len(first),
    )  # fmt: skip


def _overtakes(first: Sequence[float], second: Sequence[float]) -> int | None:
    ahead = [b > a for a, b in zip(first, second, strict=True)]
    if not ahead[-1]:
        return None
    return max((at + 1 for at, is_ahead in enumerate(ahead) if not is_ahead), default=0)


def log_slope(low: tuple[float, float], high: tuple[float, float]) -> float:
    """d ln(rate) / d ln(x) between two points (x, rate); raises ConfigError for equal or non-positive numbers."""
    if min(*low, *high) <= 0 or low[0] == high[0]:
        raise ConfigError(f"points {low} and {high} have no slope in logarithms; give two different x, all > 0")
    return math.log(high[1] / low[1]) / math.log(high[0] / low[0])


def _check(measured: Mapping[str, float], predicted: Mapping[str, float]) -> None:
    if measured.keys() != predicted.keys() or not measured:
        odd = sorted(measured.keys() ^ predicted.keys())
        raise ConfigError(f"measured and predicted options differ: {', '.join(odd) or 'there are none'}")
    for name in measured:
        for what, rate in (("measured", measured[name]), ("predicted", predicted[name])):
            if not (math.isfinite(rate) and rate > 0):
                raise ConfigError(f"{name}: {what} rate {rate} must be finite and > 0")
