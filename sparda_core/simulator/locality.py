"""Locality: how much of a selection is new each step, and how long ago the newcomers were last selected.

Two knobs describe it. *Churn* says how many blocks of a selection were not in the row's previous one.
*Reuse* says how deep such a newcomer lies in the row's LRU stack. Misses are no knob: they follow when
the selections are played through slots under a policy (residency.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

Floats = npt.NDArray[np.float64]

#: Deepest reuse that is told apart, as a natural logarithm of selections: far beyond every context.
_DEEPEST = 40.0


def _points(value: Iterable[Iterable[float]]) -> tuple[tuple[float, float], ...]:
    try:
        return tuple((float(x), float(share)) for x, share in value)
    except (TypeError, ValueError) as wrong:
        raise ConfigError(f"reuse={value!r} must be a list of [depth, share] pairs") from wrong


@attrs.frozen(kw_only=True)
class Fitted:
    """What a locality was fitted to; every number a count over all streams (layer, row, KV head).

    recording  file name
    sha256     of that file
    steps      steps recorded, the first one included, which has no previous selection
    selected   blocks selected in the steps that have one
    newcomers  of these, not in the previous selection and not just opened
    unseen     newcomers that the recording had not shown before: their depth is known only from below
    """

    recording: str
    sha256: str
    model: str
    selector: str
    budget: int
    streams: int
    steps: int
    selected: int
    newcomers: int
    unseen: int


@attrs.frozen(kw_only=True)
class LocalityModel:
    """Churn and reuse of one kind of selection.

    churn   newcomers / selected blocks of a step, in [0, 1]. A block that the step's own token opens is
            no newcomer: nothing is moved for it
    reuse   points (x, S) of the survival function: a newcomer lies deeper than x selections in the LRU
            stack with probability S(x). Starts at (1, 1), since the first selection's worth of the stack
            is the previous selection; between the points, log S is linear in log x
    tail    S falls as x ** -tail beyond the last point; None: as steeply as between the last two
    source  where the numbers are from
    fitted  the recording behind them; None where there is none

    Stack: all blocks of a row by when they were last selected, the latest first. Its oldest end stands
    for blocks that were never selected.
    """

    name: str
    title: str
    source: str
    churn: float = attrs.field(converter=float)
    reuse: tuple[tuple[float, float], ...] = attrs.field(converter=_points)
    tail: float | None = attrs.field(default=None)
    fitted: Fitted | None = None

    @churn.validator
    def _share(self, attribute: attrs.Attribute[Any], value: float) -> None:
        if not 0 <= value <= 1:
            raise ConfigError(f"churn={value} must be in [0, 1]")

    @reuse.validator
    def _falls(self, attribute: attrs.Attribute[Any], points: tuple[tuple[float, float], ...]) -> None:
        if not points or points[0] != (1.0, 1.0):
            raise ConfigError(f"reuse={list(points)} must start at [1, 1]: every newcomer is outside the selection")
        if not all(math.isfinite(x) and 0 < share <= 1 for x, share in points):
            raise ConfigError(f"reuse={list(points)} must hold finite depths and shares in (0, 1]")
        for (x, share), (deeper, less) in pairwise(points):
            if deeper <= x or less > share:
                raise ConfigError(f"reuse: [{deeper}, {less}] follows [{x}, {share}]; depths rise and shares never do")

    @tail.validator
    def _steep(self, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"tail={value} must be > 0 and finite")
        if value is None and (len(self.reuse) < 2 or self.reuse[-1][1] == self.reuse[-2][1]):
            raise ConfigError("tail is missing: with one point, or two of equal share at the end, it must be given")

    @property
    def steepness(self) -> float:
        """Exponent of the tail."""
        if self.tail is not None:
            return self.tail
        (x0, s0), (x1, s1) = self.reuse[-2:]
        return math.log(s0 / s1) / math.log(x1 / x0)

    def survival(self, depth: npt.ArrayLike) -> Floats:
        """Share of newcomers that lie deeper than `depth` selections, any shape; 1 up to depth 1."""
        x = np.log(np.maximum(np.asarray(depth, np.float64), 1.0))
        log_x, log_s = np.log(np.array(self.reuse)).T
        beyond = np.maximum(x - log_x[-1], 0.0) * self.steepness
        return np.asarray(np.exp(np.interp(x, log_x, log_s) - beyond), np.float64)

    def depth(self, share: npt.ArrayLike) -> Floats:
        """Inverse of `survival`: depth, in selections, that this share of the newcomers exceeds; share in (0, 1]."""
        rarity = -np.log(np.asarray(share, np.float64))
        log_x, log_s = np.log(np.array(self.reuse)).T
        beyond = np.maximum(rarity + log_s[-1], 0.0) / self.steepness
        return np.asarray(np.exp(np.minimum(np.interp(rarity, -log_s, log_x) + beyond, _DEEPEST)), np.float64)

    def check(self, spec: BlockSpec, context: int) -> None:
        """Raise ConfigError where rows of `context` tokens, cut by `spec`, cannot churn this much.

        A row of at most `budget` blocks attends to all of them and brings in nothing, whatever the churn.
        """
        most = spec.free / spec.budget
        if self.churn > most + 1e-12:
            raise ConfigError(
                f"churn={self.churn:g} must be <= {most:.4g}: of budget={spec.budget} only {spec.free} blocks are free "
                "to change; lower churn, sink or local, or raise budget"
            )
        blocks, need = spec.block_count(context), math.ceil(self.churn * spec.budget - 1e-9)
        if spec.budget < blocks < spec.budget + need:
            raise ConfigError(
                f"context={context} has {blocks - spec.budget} blocks outside the selection, but churn={self.churn:g} "
                f"of budget={spec.budget} brings in {need} at a step; raise context to "
                f"{(spec.budget + need - 1) * spec.block + 1}, or lower churn or budget"
            )
