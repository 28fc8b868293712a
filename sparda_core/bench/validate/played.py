"""What a trace's steps miss, played on the host: facts of timed steps, which nobody may stop to read. Torch-free."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.residency import Pools


class PlayedTrace:
    """A trace through the slots of a cell's offloaded layers, as a session plays it.

    every  blocks that each KV head attends to in step t, where the selector takes all of them; None: the trace's
    """

    def __init__(
        self, trace: BatchTrace, *, spec: BlockSpec, context: int, slots: int, policy: str, resident_layers: int,
        every: bool = False,
    ) -> None:  # fmt: skip
        self._trace, self._spec, self._context, self._every = trace, spec, context, every
        self._slots, self._resident = slots, resident_layers
        self._misses = self._play(policy) if resident_layers < trace.streams.shape[0] else None

    def _play(self, policy: str) -> npt.NDArray[np.int64]:
        """int64 [steps, P]."""
        trace, spec = self._trace, self._spec
        steps, streams = trace.selections.shape[:2]
        pools = Pools(
            streams=streams, slots=self._slots, policy=policy, blocks=spec.block_count(self._context + steps)
        )
        pools.warm(trace.before, trace.stack)
        opened = (self._opened(step) for step in range(steps))
        return np.stack([
            pools.play(chosen, np.full(streams, block)) for chosen, block in zip(trace.selections, opened, strict=True)
        ])  # fmt: skip

    def _opened(self, step: int) -> int:
        """The block that the step's own token opens; -1 for none."""
        position = self._context + step
        return position // self._spec.block if position % self._spec.block == 0 else -1

    def misses(self, step: int) -> list[int]:
        """Blocks moved in a step, by layer, over all rows and KV heads."""
        streams = self._trace.streams
        if self._misses is None:
            return [0] * streams.shape[0]
        counts = self._misses[step][streams].sum((1, 2))
        counts[: self._resident] = 0
        return [int(count) for count in counts]

    def facts(self, first: int, count: int) -> CompactFacts:
        """Facts of `count` steps from step `first` on, the trace's first being 0."""
        layers, batch, heads = self._trace.streams.shape
        steps = range(first, first + count)
        lengths = [self._context + step + 1 for step in steps]
        blocks = [self._spec.block_count(length) for length in lengths]
        return CompactFacts(
            layers=layers, batch=batch, kv_heads=heads, budget=self._spec.budget,
            slots=self._slots if self._misses is not None else 0, lengths=lengths,
            selected=blocks if self._every else [min(self._spec.budget, most) for most in blocks],
            opened=[int(self._opened(step) >= 0) for step in steps], misses=[self.misses(step) for step in steps],
        )  # fmt: skip


def differs(counted: Any, played: list[int]) -> str | None:
    """Whether a device's counts of a step (int [L, B, Hk]) are the played ones, by layer; else how they differ."""
    found = [int(count) for count in np.asarray(counted).sum((1, 2))]
    wrong = [layer for layer, (a, b) in enumerate(zip(found, played, strict=True)) if a != b]
    if not wrong:
        return None
    at = wrong[0]
    return f"{len(wrong)} layers missed another number of blocks than played, layer {at} {found[at]} for {played[at]}"
