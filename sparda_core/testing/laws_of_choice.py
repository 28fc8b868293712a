"""Laws of one selection: which blocks may stand in it, and in what form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.selection import NO_BLOCK
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial

Ids = npt.NDArray[np.int32]


def _each(trial: Trial) -> Iterator[tuple[str, list[int], int]]:
    """Where, ids without padding, position: of every query and head of an undisturbed play."""
    for view in trial.seen:
        assert view.selection is not None
        for (row, head, query), _ in np.ndenumerate(view.selection[..., 0].numpy()):
            ids = [block for block in view.selection[row, head, query].tolist() if block != NO_BLOCK]
            position = int(view.positions[row, query])
            yield f"layer {view.layer}, head {head}, position {position}", ids, position


def _form(trial: Trial) -> None:
    for view in trial.seen:
        chosen = view.selection
        require(isinstance(chosen, torch.Tensor), f"view.selection is a {type(chosen).__name__}, not a tensor")
        assert chosen is not None
        want = (view.positions.shape[0], trial.shape.kv_heads, view.positions.shape[1], trial.spec.budget)
        require(
            chosen.dtype == torch.int32 and tuple(chosen.shape) == want,
            f"{chosen.dtype}{list(chosen.shape)} in layer {view.layer}, want torch.int32{list(want)}",
        )


def _order(trial: Trial) -> None:
    for view in trial.seen:
        assert view.selection is not None
        for (row, head, query), _ in np.ndenumerate(view.selection[..., 0].numpy()):
            ids = view.selection[row, head, query].tolist()
            kept = [block for block in ids if block != NO_BLOCK]
            require(
                kept == sorted(kept) and ids[: len(kept)] == kept and min(kept, default=0) >= 0,
                f"{ids} in layer {view.layer}, head {head}",
            )


def _no_repeats(trial: Trial) -> None:
    for where, ids, _ in _each(trial):
        require(len(set(ids)) == len(ids), f"{ids} at {where}")


def _no_future(trial: Trial) -> None:
    for where, ids, position in _each(trial):
        current = position // trial.spec.block
        require(max(ids, default=0) <= current, f"{ids} at {where}, whose own block is {current}")


def _forced(trial: Trial) -> None:
    for where, ids, position in _each(trial):
        lacks = sorted(set(trial.spec.forced_blocks(position)) - set(ids))
        require(not lacks, f"{ids} at {where} lacks {lacks}")


def _budget(trial: Trial) -> None:
    for where, ids, _ in _each(trial):
        require(len(ids) <= trial.spec.budget, f"{len(ids)} blocks at {where}, budget {trial.spec.budget}")


CHOICE_LAWS: tuple[Law[Trial], ...] = (
    Law("within-budget", "no selection holds more blocks than the budget, forced ones included", _budget),
    Law("form", "a selection is int32 [B, Hk, T, budget]", _form),
    Law("no-repeats", "no block is selected twice", _no_repeats),
    Law("order", "a selection is ascending, -1 last", _order),
    Law("no-future-block", "no block after the query's own is selected", _no_future),
    Law("forced-blocks", "sink and local blocks and the query's own are always selected", _forced),
)
