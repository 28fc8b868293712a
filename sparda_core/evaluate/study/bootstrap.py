"""Intervals over documents: whole documents are drawn anew with replacement, with all their windows.

One table of draws serves every figure of a study, so that differences and ratios are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError

DRAWS = 2000
Floats = npt.NDArray[np.float64]


@attrs.frozen(kw_only=True)
class Estimate:
    """A figure and the middle 95 % of what it is over drawn documents; NaN all three where nothing was measured."""

    value: float
    low: float
    high: float

    def exp(self) -> Estimate:
        """The same of the exponential, which keeps order."""
        return Estimate(value=math.exp(self.value), low=math.exp(self.low), high=math.exp(self.high))


NOTHING = Estimate(value=float("nan"), low=float("nan"), high=float("nan"))


@attrs.frozen(eq=False)
class Draws:
    """How often each row counts in each draw: float64 [draws, rows]."""

    weights: Floats

    @classmethod
    def of(cls, documents: Sequence[str], *, seed: int, draws: int = DRAWS) -> Draws:
        """Draw as many documents as there are, `draws` times; documents[i] is the one that row i belongs to."""
        names = sorted(set(documents))
        if not names:
            raise ConfigError("there are no rows to draw from; measure at least one window")
        drawn = np.random.default_rng([seed, len(names)]).multinomial(len(names), [1 / len(names)] * len(names), draws)
        column = {name: at for at, name in enumerate(names)}
        return cls(drawn[:, [column[name] for name in documents]].astype(np.float64))

    def mean(self, values: Sequence[float]) -> Estimate:
        """Mean over rows; rows that are NaN are left out."""
        return self._of(np.asarray(values, np.float64), exp=False)

    def geometric(self, values: Sequence[float]) -> Estimate:
        """Geometric mean over rows of positive values."""
        return self._of(np.log(np.asarray(values, np.float64)), exp=True)

    def ratio(self, values: Sequence[float], others: Sequence[float]) -> Estimate:
        """Geometric mean over rows of values / others, both positive."""
        return self._of(np.log(np.asarray(values, np.float64)) - np.log(np.asarray(others, np.float64)), exp=True)

    def difference(self, values: Sequence[float], others: Sequence[float]) -> Estimate:
        """Mean over rows of values - others."""
        return self._of(np.asarray(values, np.float64) - np.asarray(others, np.float64), exp=False)

    def ratio_of_means(self, values: Sequence[float], others: Sequence[float]) -> Estimate:
        """Mean of values / mean of others."""
        top, bottom = np.asarray(values, np.float64), np.asarray(others, np.float64)
        some = np.isfinite(top) & np.isfinite(bottom)
        if not some.any():
            return NOTHING
        weights = self.weights[:, some]
        weights = weights[weights.sum(1) > 0]
        drawn = (weights @ top[some]) / (weights @ bottom[some])
        return _estimate(top[some].mean() / bottom[some].mean(), drawn)

    def _of(self, values: Floats, *, exp: bool) -> Estimate:
        some = np.isfinite(values)
        if not some.any():
            return NOTHING
        weights = self.weights[:, some]
        weights = weights[weights.sum(1) > 0]  # a draw may hold none of these documents
        drawn, mean = (weights @ values[some]) / weights.sum(1), values[some].mean()
        return _estimate(np.exp(mean), np.exp(drawn)) if exp else _estimate(mean, drawn)


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Estimate(value=float(value), low=float(low), high=float(high))
