"""What a training run is: every number that decides its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

INITS = ("query-mean", "random")
SCHEDULES = ("cosine", "constant")
REFERENCE = "reference"

#: What `--objective reference` sets unless told otherwise: the published training's own numbers. It asks
#: every position of a window, so `positions` and `first_position` follow from the window.
REFERENCE_RUN: Mapping[str, Any] = {
    "objective": REFERENCE, "teacher": "fine", "init": "random", "lr": 5e-4, "schedule": "constant", "warmup": 0,
    "steps": 2000, "batch": 32, "clip": 0.5, "weight_decay": 0.01, "eps": 1e-6, "seed": 42, "first_position": 0,
    "documents": "joined", "states": "teacher",
}  # fmt: skip


NOSA = "nosa"
#: Objectives that are a published training's, its rounding and its numbers included.
PUBLISHED = (REFERENCE, NOSA)
#: The same of a NOSA model, whose Forecast replaces the first of two stages: it learns that stage's blocks alone.
NOSA_RUN: Mapping[str, Any] = {**REFERENCE_RUN, "objective": NOSA, "select_blocks": 24}

#: What `--cpu-recipe` sets unless told otherwise: a run that two cores finish in ten minutes.
CPU_RECIPE: Mapping[str, Any] = {"window": 2048, "positions": 256, "steps": 120, "warmup": 10}

#: Numbers of the optimiser beyond this overflow its float32 arithmetic.
_MOST = 1e30


def _at_least(bound: float, most: float = math.inf) -> Any:
    def check(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not bound <= value <= most or not math.isfinite(value):
            limit = f" and <= {most:g}" if most < math.inf else ""
            raise ConfigError(f"{attribute.name}={value!r} must be a finite number >= {bound}{limit}")

    return check


@attrs.frozen(kw_only=True)
class TrainConfig:
    """One run of the trainer.

    objective       what is learnt: a name of objectives.OBJECTIVES, or one of PUBLISHED
    teacher         the grid of its targets: "coarse" (that of the block spec), "fine" (2/1) or "window/stride"
    steps           optimiser steps
    batch           rows of a step, over all processes together
    window          most tokens of a row; the frozen model reads it once
    documents       how rows are cut from documents: rows.MODES
    positions       query positions drawn from each row, all where it has fewer
    first_position  the earliest one in a document: before it there is too little to choose from
    lr              peak learning rate, reached after `warmup` steps
    schedule        from there: "cosine", down to lr * lr_floor, or "constant"
    clip            largest L2 norm of all gradients together; 0 for none
    weight_decay, eps  AdamW's; its betas are 0.9 and 0.95
    lead            layers between a Forecast and the layer that it is for; the first ones forecast for themselves
    states          hidden states follow "dense" attention, or "forecast": from first_position on, what the Forecast
                    as it stands selects at the spec's budget (on-policy; own_states.py), or "teacher": what it selects
    seed            decides rows, positions and a random init
    init            "query-mean": mean over each group of the forecast layer's own query rows; or "random"
    select_blocks   of a NOSA model: blocks beside sink and local that go by the score, the query's own among them, all
                    others going by their tokens' bias. Selections of states are made in these two stages, and "top"
                    and "nosa" teach the first stage's blocks. 0: one stage, the budget's
    chunk_mib       memory for scores of teacher and student: as many queries at once as fit; no result depends on it
    """

    spec: BlockSpec = attrs.field(factory=BlockSpec)
    objective: str = "block"
    teacher: str = "fine"
    steps: int = attrs.field(default=250, validator=_at_least(1))
    batch: int = attrs.field(default=1, validator=_at_least(1))
    window: int = attrs.field(default=2048, validator=_at_least(1))
    documents: str = "packed"
    positions: int = attrs.field(default=512, validator=_at_least(1))
    first_position: int = attrs.field(default=512, validator=_at_least(0))
    lr: float = attrs.field(default=3e-3, validator=_at_least(0, _MOST))
    schedule: str = attrs.field(default="cosine", validator=attrs.validators.in_(SCHEDULES))
    warmup: int = attrs.field(default=20, validator=_at_least(0))
    lr_floor: float = attrs.field(default=0.02, validator=_at_least(0, 1))
    clip: float = attrs.field(default=0.0, validator=_at_least(0))
    weight_decay: float = attrs.field(default=0.0, validator=_at_least(0, _MOST))
    eps: float = attrs.field(default=1e-8, validator=_at_least(0, _MOST))
    lead: int = attrs.field(default=1, validator=_at_least(1))
    states: str = attrs.field(default="dense", validator=attrs.validators.in_(("dense", "forecast", "teacher")))
    seed: int = attrs.field(default=0, validator=_at_least(0))
    init: str = attrs.field(default="query-mean", validator=attrs.validators.in_(INITS))
    select_blocks: int = attrs.field(default=0, validator=_at_least(0))
    chunk_mib: int = attrs.field(default=256, validator=_at_least(1))

    @classmethod
    def reference(cls, **changes: Any) -> TrainConfig:
        """The published training's numbers, a NOSA model's with objective "nosa"; every position of a row is asked."""
        options = {**(NOSA_RUN if changes.get("objective") == NOSA else REFERENCE_RUN), **changes}
        options.setdefault("positions", options.get("window", attrs.fields(cls).window.default))
        return cls(**options)

    def __attrs_post_init__(self) -> None:
        spec = self.spec
        if self.seed >= 2**63:
            raise ConfigError(f"seed={self.seed} must be < 2**63")
        if spec.local < 1:
            raise ConfigError(f"local={spec.local} must be >= 1: a free block must be wholly visible")
        if self.objective == NOSA and not self.select_blocks:
            raise ConfigError("objective='nosa' needs select_blocks >= 1: the blocks of the first stage (NOSA-8B: 24)")
        if spec.sink + spec.local + self.select_blocks > spec.budget:
            raise ConfigError(
                f"select_blocks={self.select_blocks} must be <= budget - sink - local = "
                f"{spec.budget - spec.sink - spec.local}: raise the budget, or lower select_blocks"
            )
        earliest = (spec.sink + spec.local + 2) * spec.block
        # The published objective counts positions without a free block, too.
        if self.objective not in PUBLISHED and self.first_position < earliest:
            raise ConfigError(
                f"first_position={self.first_position} must be >= {earliest}, "
                "where the first query with two free blocks to choose between lies"
            )
        if self.window <= self.first_position:
            raise ConfigError(
                f"window={self.window} must be > first_position={self.first_position}: lengthen the window"
            )

    @property
    def taught(self) -> BlockSpec:
        """The cut with the budget of the blocks that a Forecast decides: all of it, or the first of two stages."""
        first = self.spec.sink + self.spec.local + self.select_blocks
        return self.spec.with_budget(first) if self.select_blocks else self.spec

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up: never more than a tenth of all, as in the published training."""
        return min(self.warmup, self.steps // 10) if self.objective in PUBLISHED else self.warmup

    def lr_at(self, step: int) -> float:
        """Learning rate of `step`, counted from 0."""
        warmup = self.warmup_steps
        if step < warmup:
            return self.lr * (step + 1) / warmup
        if self.schedule == "constant":
            return self.lr
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.lr * (self.lr_floor + (1 - self.lr_floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
