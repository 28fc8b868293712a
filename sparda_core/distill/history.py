"""What a run told: loss, learning rate and gradient of every step, recall at every evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Step:
    """One optimiser step, counted from 1.

    loss      mean over layers, KV heads and queries, nats
    norm      L2 norm of all gradients together, before clipping
    by_layer  the loss of every forecast layer
    """

    step: int
    loss: float
    lr: float
    norm: float
    by_layer: tuple[float, ...]


@attrs.frozen
class Evaluation:
    """Held-out text after `step` steps: recall of free blocks, macro mean over layers from the lead on.

    oracle  against the blocks with the largest exact attention mass
    query   against the query-driven selector's
    """

    step: int
    oracle: float
    query: float

    def by(self, reference: str) -> float:
        """Recall against "oracle" or "query"."""
        return {"oracle": self.oracle, "query": self.query}[reference]


@attrs.define
class History:
    """Grows by one Step a step; `evaluations` are ascending."""

    told: list[Step] = attrs.field(factory=list)
    evaluations: list[Evaluation] = attrs.field(factory=list)

    @property
    def steps(self) -> int:
        """Steps done."""
        return len(self.told)

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        return [step.loss for step in self.told]

    def best(self, reference: str) -> Evaluation | None:
        """The evaluation of the highest recall, the earliest where several are level."""
        known = [one for one in self.evaluations if not math.isnan(one.by(reference))]
        return max(known, key=lambda one: one.by(reference), default=None)

    def rows(self) -> list[dict[str, Any]]:
        """A row a step for a table; recall is None where it was not measured."""
        seen = {one.step: one for one in self.evaluations}
        return [
            {
                "step": step.step, "loss_nats": step.loss, "lr": step.lr, "gradient_norm": step.norm,
                "recall_oracle": seen[step.step].oracle if step.step in seen else None,
                "recall_query": seen[step.step].query if step.step in seen else None,
                **{f"loss_layer_{layer}": loss for layer, loss in enumerate(step.by_layer)},
            }
            for step in self.told
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Plain values, floats unrounded."""
        return {
            "steps": [attrs.astuple(step) for step in self.told],
            "evaluations": [attrs.astuple(one) for one in self.evaluations],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Sequence[Any]]) -> History:
        """The inverse of as_json; raises ArithmeticError, LookupError, TypeError or ValueError for anything else."""
        told = [Step(int(n), float(a), float(b), float(c), tuple(map(float, d))) for n, a, b, c, d in content["steps"]]
        found = [Evaluation(int(n), float(a), float(b)) for n, a, b in content["evaluations"]]
        return cls(told=told, evaluations=found)
