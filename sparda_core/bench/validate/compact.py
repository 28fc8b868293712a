"""Facts of measured steps in a few numbers: what a step's time depends on is how many blocks each layer missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import attrs
import numpy as np

from sparda_core.errors import RecordingError
from sparda_core.facts import StepFacts


def _ints(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


def _rows(value: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in value)


@attrs.frozen(kw_only=True)
class CompactFacts:
    """Counts of steps in a row. Rows are of one length.

    layers, batch, kv_heads   sizes
    budget, slots   as in StepFacts
    lengths         tokens in each row's cache after each step
    selected        blocks that each (layer, row, KV head) selected, by step
    opened          whether each step's own token opened a block
    misses          [steps][layers]: blocks moved, over all rows and KV heads
    """

    layers: int
    batch: int
    kv_heads: int
    budget: int
    slots: int
    lengths: tuple[int, ...] = attrs.field(converter=_ints)
    selected: tuple[int, ...] = attrs.field(converter=_ints)
    opened: tuple[int, ...] = attrs.field(converter=_ints)
    misses: tuple[tuple[int, ...], ...] = attrs.field(converter=_rows)

    def __attrs_post_init__(self) -> None:
        steps = {len(part) for part in (self.lengths, self.selected, self.opened, self.misses)}
        if len(steps) != 1 or not self.misses or any(len(row) != self.layers for row in self.misses):
            raise RecordingError(
                f"facts: {len(self.misses)} steps of misses, {len(self.lengths)} lengths, {len(self.selected)} "
                f"selections; want as many of each, and {self.layers} layers in every step"
            )

    @property
    def steps(self) -> int:
        """Steps."""
        return len(self.misses)

    @property
    def mean_misses(self) -> float:
        """Blocks moved in a mean step, all layers."""
        return sum(map(sum, self.misses)) / self.steps

    def step_facts(self) -> tuple[StepFacts, ...]:
        """Facts of each step. A layer's misses are spread evenly over rows and KV heads: its sum is what counts."""
        return tuple(self._step(at) for at in range(self.steps))

    def _step(self, at: int) -> StepFacts:
        size = (self.layers, self.batch, self.kv_heads)
        each = self.batch * self.kv_heads
        shares = np.arange(each + 1) / each
        misses = np.stack([np.diff(np.floor(shares * count + 1e-9)) for count in self.misses[at]])
        none = np.zeros(size, np.int64)
        return StepFacts(
            new_tokens=1, budget=self.budget, slots=self.slots, active=np.ones(self.batch),
            lengths=np.full(self.batch, self.lengths[at]), selected=np.full(size, self.selected[at]),
            misses=misses.reshape(size), opened=np.full(size, self.opened[at]), late=none, wasted=none,
        )  # fmt: skip

    @classmethod
    def of_steps(cls, facts: Sequence[StepFacts]) -> Self:
        """Of recorded steps; raises RecordingError where rows differ in length or in how much they select."""
        if not facts:
            raise RecordingError("facts is empty; give at least one step")
        same = {name: [_same(name, step) for step in facts] for name in ("lengths", "selected", "opened")}
        layers, batch, heads = facts[0].selected.shape
        return cls(
            layers=layers, batch=batch, kv_heads=heads, budget=facts[0].budget, slots=facts[0].slots,
            misses=[step.misses.sum((1, 2)).tolist() for step in facts], **same,
        )  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)


def _same(name: str, facts: StepFacts) -> int:
    values = getattr(facts, name)
    first = int(values.flat[0])
    if (values != first).any():
        raise RecordingError(f"facts: {name} differs between rows or layers ({values.min()} to {values.max()})")
    return first
