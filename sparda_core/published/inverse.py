"""Inverse questions: which value of an assumption would make a cell come out as published."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from sparda_core.published.cells import Assumptions, CellResult, predict_cell
from sparda_core.published.table import Cell, Mode

#: A step is hit this closely, in seconds.
_WITHIN_S = 1e-5
#: Looks after which a function jumps over 0; six have been enough for every cell.
_MOST_LOOKS = 30
#: A cell that the host bounds and that comes out this close says nothing about churn.
_CLOSE = 0.05


def implied_churn(result: CellResult, assumed: Assumptions) -> float | None:
    """The churn at which the cell would come out as published; None where no churn does, or where it hardly matters.

    Never used for a prediction: it says what the paper's figures would mean if all else here were right. The
    table cannot tell churn from the rate of the link: what it tells is the one over the other.
    """
    cell = result.cell
    if result.error is None or not result.transfer_s or (result.bound == "host" and abs(result.error) < _CLOSE):
        return None
    return root(lambda churn: step_s(cell, attrs.evolve(assumed, churn=churn)) - (cell.step_s or 0.0), 0.0, 1.0)


@attrs.frozen(kw_only=True)
class CrossCheck:
    """Prefetch predicted with the churn that the same batch without prefetch implies: same selector, same bytes."""

    batch: int
    churn: float
    published_tokens_per_s: float
    predicted_tokens_per_s: float

    @property
    def error(self) -> float:
        """Predicted over published tokens/s, less 1."""
        return self.predicted_tokens_per_s / self.published_tokens_per_s - 1


def cross_checks(results: Sequence[CellResult], assumed: Assumptions) -> tuple[CrossCheck, ...]:
    """One for each batch that has a time in both modes, and a churn implied by the one without prefetch."""
    found = {(r.cell.batch, r.cell.mode): r for r in results}
    checks = []
    for (batch, mode), alone in found.items():
        cell = found[batch, Mode.PREFETCH].cell
        churn = implied_churn(alone, assumed) if mode == Mode.NO_PREFETCH else None
        if churn is not None and cell.tokens_per_s is not None:
            predicted = batch / step_s(cell, attrs.evolve(assumed, churn=churn))
            check = CrossCheck(
                batch=batch, churn=churn, published_tokens_per_s=cell.tokens_per_s, predicted_tokens_per_s=predicted
            )
            checks.append(check)
    return tuple(checks)


def step_s(cell: Cell, assumed: Assumptions) -> float:
    """Predicted seconds of a step; the cell must fit into memory."""
    predicted = predict_cell(cell, assumed).step_s
    assert predicted is not None, f"batch {cell.batch} of {cell.mode} does not fit"
    return predicted


def root(function: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a rising function is 0, by regula falsi (Illinois), within _WITHIN_S; None elsewhere or in a jump."""
    at_low, at_high = function(low), function(high)
    if at_low > 0 or at_high < 0:
        return None
    here, side = low, 0
    for _ in range(_MOST_LOOKS):
        here = (low * at_high - high * at_low) / (at_high - at_low) if at_high > at_low else low
        value = function(here)
        if abs(value) < _WITHIN_S:
            return here
        if value < 0:
            low, at_low, at_high, side = here, value, at_high / 2 if side < 0 else at_high, -1
        else:
            high, at_high, at_low, side = here, value, at_low / 2 if side > 0 else at_low, 1
    return None
