"""A selector whose kernels run while a trace decides. Torch is loaded when it is bound."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, DeviceSizes, Selector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True, eq=False)
class Traced(Selector):
    """Declares what `inner` declares; on a GPU its choice is replaced by that of `trace`, from its first step on.

    before  steps that count as made when the first comes: `trace.history` where `warm_slots` fills the slots
    """

    name: ClassVar[str] = "traced"
    inner: Selector
    trace: BatchTrace
    before: int = 0

    def __attrs_post_init__(self) -> None:
        for name in ("lead", "needs", "granularity"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def check(self, shape: ModelShape, spec: BlockSpec) -> None:
        """As the inner selector."""
        self.inner.check(shape, spec)

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """As the inner selector."""
        return self.inner.operations(target, phase, lead)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """As the inner selector."""
        return self.inner.work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """As the inner selector, whose CPU half is never asked to select here."""
        return self.inner.bind(shape=shape, spec=spec)

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """As the inner selector, and the trace of every row."""
        steps, _, width = self.trace.selections.shape
        played = 4 * steps * int(self.trace.streams.size) * width
        return self.inner.device_bytes(sizes) + int(played)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The inner GPU half, then the trace."""
        import torch

        from sparda_core.selectors.device.replay import Replaced

        inner = self.inner.bind_device(room)
        if inner.takes_every_block:
            return inner
        played = self.trace.selections[:, self.trace.streams]  # [T, L, B, Hk, W]
        on_device = torch.from_numpy(np.ascontiguousarray(played)).to(room.device)
        return Replaced(inner, on_device, room.tick, first=1 + self.before, early=room.early)
