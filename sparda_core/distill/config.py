"""What a training run is: every number that decides its result."""

from __future__ import annotations

import math
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

OBJECTIVE = "block"
INITS = ("query-mean", "random")


def _at_least(bound: float) -> Any:
    def check(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= bound or not math.isfinite(value):
            raise ConfigError(f"{attribute.name}={value!r} must be a finite number >= {bound}")

    return check


@attrs.frozen(kw_only=True)
class TrainConfig:
    """One run of the trainer.

    steps           optimiser steps, one window each
    window          tokens of a window; the frozen model reads it once
    positions       query positions drawn from each window
    first_position  the earliest one: before it there is too little to choose from
    lr              peak learning rate, reached after `warmup` steps, then a cosine down to lr * lr_floor
    seed            decides windows, positions and a random init
    init            "query-mean": mean over each group of the forecast layer's own query rows; or "random"
    """

    spec: BlockSpec = attrs.field(factory=BlockSpec)
    steps: int = attrs.field(default=250, validator=_at_least(1))
    window: int = attrs.field(default=2048, validator=_at_least(1))
    positions: int = attrs.field(default=512, validator=_at_least(1))
    first_position: int = attrs.field(default=512, validator=_at_least(0))
    lr: float = attrs.field(default=6e-3, validator=_at_least(0))
    warmup: int = attrs.field(default=20, validator=_at_least(0))
    lr_floor: float = attrs.field(default=0.02, validator=_at_least(0))
    seed: int = attrs.field(default=0, validator=_at_least(0))
    init: str = attrs.field(default="query-mean", validator=attrs.validators.in_(INITS))

    def __attrs_post_init__(self) -> None:
        spec = self.spec
        if self.seed >= 2**63:
            raise ConfigError(f"seed={self.seed} must be < 2**63")
        if spec.local < 1:
            raise ConfigError(f"local={spec.local} must be >= 1: a free block must be wholly visible")
        earliest = (spec.sink + spec.local + 2) * spec.block
        if self.first_position < earliest:
            raise ConfigError(
                f"first_position={self.first_position} must be >= {earliest}, "
                "where the first query with two free blocks to choose between lies"
            )
        if self.window <= self.first_position:
            raise ConfigError(
                f"window={self.window} must be > first_position={self.first_position}: lengthen the window"
            )

    def lr_at(self, step: int) -> float:
        """Learning rate of `step`, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (self.lr_floor + (1 - self.lr_floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
