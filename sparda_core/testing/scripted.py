"""scripted: any lawful selection at all, drawn anew at every step. What a runtime must be able to serve."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np
import torch

from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.plan import Op
from sparda_core.selector import BoundSelector
from sparda_core.selectors.declaration import SCORE, ScoringDeclaration
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.define
class Script:
    """What the next step selects follows from this number, the layer, the row, the head and the position."""

    seed: int = 0


@attrs.frozen(kw_only=True)
class Scripted(ScoringDeclaration):
    """Forced blocks and any of the others, none or as many as fit, whatever the step before selected.

    Scores, which only a policy looks at, are any too: equal ones, infinite ones and NaN among them.
    """

    name: ClassVar[str] = "scripted"
    lead = None

    script: Script = attrs.field(factory=Script, eq=False)

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """None: it stands for any method."""
        return Work()

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; sessions that share a declaration select the same."""
        return _BoundScripted(self.script, shape.kv_heads)


class _BoundScripted(BoundSelector):
    def __init__(self, script: Script, kv_heads: int) -> None:
        self._script, self._kv_heads = script, kv_heads

    def run(self, kind: str, view: LayerView) -> None:
        batch, queries = view.positions.shape
        blocks = max(0, int(view.positions.max())) // view.spec.block + 1
        scores = np.empty((batch, self._kv_heads, queries, blocks))
        chosen = np.full((batch, self._kv_heads, queries, view.spec.budget), -1, np.int32)
        for b, h, t in np.ndindex(scores.shape[:3]):
            position = int(view.positions[b, t])
            if position >= 0:
                draw = np.random.default_rng([self._script.seed, view.layer, view.rows[b], h, position])
                scores[b, h, t] = draw.choice([0.0, 1.0, -np.inf, np.nan, 2.5], size=blocks)
                ids = _any(draw, position, view.spec)
                chosen[b, h, t, : len(ids)] = ids
        if kind == SCORE:
            view.scores = torch.from_numpy(scores)
        else:
            view.selection = torch.from_numpy(chosen)


def _any(draw: np.random.Generator, position: int, spec: BlockSpec) -> list[int]:
    forced = spec.forced_blocks(position)
    free = [block for block in range(position // spec.block + 1) if block not in forced]
    most = min(len(free), spec.budget - len(forced))
    # All that fit as often as not: a pool is under pressure only then.
    count = most if draw.integers(2) else int(draw.integers(most + 1))
    return sorted([*forced, *draw.choice(free, size=count, replace=False).tolist()]) if count else list(forced)
