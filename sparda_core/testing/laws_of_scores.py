"""Laws of methods that score: the choice is the best by the scores, ties to the lower id, and NaN ranks last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from sparda_core.kernels.topk.reference import choose_blocks
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.testing.drive import Drive
from sparda_core.testing.law import Law, require
from sparda_core.testing.trial import Trial

_MAKES_NONE = "it makes no scores"


def _unscored(trial: Trial) -> str | None:
    return None if trial.makes_scores else _MAKES_NONE


def _no_reference(trial: Trial) -> str | None:
    return "no reference was given" if trial.reference is None else None


def _chooses_by(trial: Trial, spoil: Sequence[float], what: str) -> None:
    """Its last operation, given scores of these few values, chooses what the reference chooses."""
    driven, at = trial.drive(), trial.scene.tokens[0]
    driven.prefill(0, at)
    source = torch.Generator().manual_seed(trial.scene.seed)
    for layer in range(trial.shape.layers):
        view = _scored(trial, driven, driven.world.view([0], [[at]], layer=layer))
        assert view.scores is not None
        drawn = torch.randint(len(spoil), view.scores.shape, generator=source)
        view.scores = torch.tensor(spoil, dtype=view.scores.dtype)[drawn]
        before = view.scores.clone()
        driven.bound.run(_kinds(trial, layer)[-1], view)
        assert view.selection is not None
        want = choose_blocks(before, view.positions, view.spec)
        for (row, head, query), _ in np.ndenumerate(want[..., 0].numpy()):
            got, best = (one[row, head, query].tolist() for one in (view.selection, want))
            given = before[row, head, query].tolist()
            require(got == best, f"{what}: scores {given} gave {got}, want {best} (layer {layer}, position {at})")


def _kinds(trial: Trial, layer: int) -> tuple[str, ...]:
    return trial.selector.operations(layer, Phase.DECODE, 0)


def _scored(trial: Trial, driven: Drive, view: LayerView) -> LayerView:
    for kind in _kinds(trial, view.layer)[:-1]:
        driven.bound.run(kind, view)
    return view


def _ties(trial: Trial) -> None:
    _chooses_by(trial, [0.0], "equal scores")
    _chooses_by(trial, [1.0, 0.0, -1.0], "few different scores")


def _nan(trial: Trial) -> None:
    _chooses_by(trial, [float("nan"), -2.0, 1.0], "NaN among scores")
    _chooses_by(trial, [float("nan"), float("-inf"), float("inf"), 0.5], "NaN and infinities among scores")


def _brute_force(trial: Trial) -> None:
    """What was chosen is worth, by the reference's scores, what the best is worth."""
    assert trial.reference is not None
    for view in trial.seen:
        assert view.selection is not None
        for (row, head, query), _ in np.ndenumerate(view.selection[..., 0].numpy()):
            sight = trial.sight(view, row, head, query)
            scores = [_known(score) for score in trial.reference(sight)]
            ids = [block for block in view.selection[row, head, query].tolist() if block >= 0]
            forced = set(trial.spec.forced_blocks(sight.position))
            blocks = range(sight.position // trial.spec.block + 1)
            scores += [-math.inf] * (len(blocks) - len(scores))
            best = sorted((scores[b] for b in blocks if b not in forced), reverse=True)
            best = best[: trial.spec.budget - len(forced)]
            got = sorted((scores[b] for b in ids if b not in forced), reverse=True)
            where = f"layer {view.layer}, head {head}, position {sight.position}"
            require(len(got) == len(best), f"{len(got)} free blocks at {where}, the reference takes {len(best)}")
            near = all(a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(got, best, strict=True))
            require(near, f"{ids} at {where}: free blocks worth {got}, the best are worth {best}")


def _known(score: float) -> float:
    return -math.inf if math.isnan(score) else float(score)


SCORE_LAWS: tuple[Law[Trial], ...] = (
    Law("lower-id", "of blocks with equal scores the one with the lower id is chosen", _ties, _unscored),
    Law("nan-ranks-last", "a score that is NaN ranks as minus infinity", _nan, _unscored),
    Law("brute-force", "what is chosen is the best by the reference's scores, up to ties", _brute_force, _no_reference),
)
