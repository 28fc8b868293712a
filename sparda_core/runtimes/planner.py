"""What all plan writers share: the order of operations in a layer. Torch-free.

A concrete runtime says only when a transfer is issued: `early`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.runtime import Runtime, Session
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape

#: Ways to move blocks: the CPU's, which stands for "uva" on a GPU, and those of a GPU (runtimes/gpu/engines.py).
ENGINE_NAMES = ("thread", "uva", "copy-engine", "cpu-gather")
#: Ways to prefill: every query to all before it, or each to its own selection.
PREFILL_MODES = ("dense", "selector")


def check_mode(mode: str) -> None:
    """Raise ConfigError for a way to prefill that nobody knows."""
    if mode not in PREFILL_MODES:
        raise ConfigError(f"mode={mode!r} is unknown; known: {', '.join(PREFILL_MODES)}")


@attrs.frozen(kw_only=True)
class PlanWriter(Runtime):
    """Base of the built-in runtimes. Narrow hook: `early`."""

    def __attrs_post_init__(self) -> None:
        if self.engine not in ENGINE_NAMES:
            raise UnknownNameError(what="engine", name=self.engine, known=ENGINE_NAMES)

    @property
    @abc.abstractmethod
    def early(self) -> bool:
        """True where a transfer is issued as soon as it is known, False where just before it is needed."""

    def open(self, model: Any, *, selector: Selector, spec: BlockSpec, **options: Any) -> Session:
        """A session on the device that the model lies on; options are those of SessionOptions on a CPU, of GpuOptions
        on a CUDA device.
        """
        decoder = getattr(model, "decoder", model)
        if decoder.device.type == "cuda":
            from sparda_core.runtimes.gpu.options import GpuOptions
            from sparda_core.runtimes.gpu.session import GpuSession

            return GpuSession(model, runtime=self, selector=selector, spec=spec, options=GpuOptions.of(**options))
        from sparda_core.runtimes.session import CpuSession
        from sparda_core.runtimes.session_options import SessionOptions

        return CpuSession(model, runtime=self, selector=selector, spec=spec, options=SessionOptions.of(**options))

    def decode_plan(self, *, shape: ModelShape, spec: BlockSpec, selector: Selector) -> StepPlan:
        """One decode step; see docs/design.md, "One decode step"."""
        self.check(selector, shape, spec)
        writer = _Writer(self, shape, selector, Phase.DECODE)
        ops = [Op(kind=Kind.EMBED)]
        for layer in range(shape.layers):
            ops += writer.decode_layer(layer)
        return writer.plan([*ops, Op(kind=Kind.HEAD)])

    def prefill_plan(self, *, shape: ModelShape, spec: BlockSpec, selector: Selector, mode: str) -> StepPlan:
        """One chunk appended to a row at any offset; mode "dense" or "selector"."""
        self.check(selector, shape, spec)
        check_mode(mode)
        writer = _Writer(self, shape, selector, Phase.PREFILL)
        ops = [Op(kind=Kind.EMBED)]
        for layer in range(shape.layers):
            ops += writer.prefill_layer(layer, mode)
        return writer.plan([*ops, Op(kind=Kind.HEAD)])


class _Writer:
    """Writes the operations of one layer after another."""

    def __init__(self, runtime: PlanWriter, shape: ModelShape, selector: Selector, phase: Phase) -> None:
        self._runtime, self._shape, self._selector, self._phase = runtime, shape, selector, phase
        self._lead = runtime.lead(selector)
        self._resident = runtime.resident_count(selector, shape)

    def plan(self, ops: list[Op]) -> StepPlan:
        return StepPlan(
            ops=ops, phase=self._phase, runtime=self._runtime.name, selector=self._selector.name,
            lead=self._lead, resident_layers=self._resident, engine=self._runtime.engine,
        )  # fmt: skip

    def decode_layer(self, layer: int) -> Iterator[Op]:
        early, last = self._runtime.early, Op(kind=Kind.APPEND, layer=layer)
        yield from _ops(layer, Kind.PROJECT, Kind.ENTRIES)
        if layer < self._lead or self._lead == 0:
            yield from self._selection(layer, source=layer)
        yield last
        if self._lead and layer + self._lead < self._shape.layers:
            for op in self._selection(layer + self._lead, source=layer):
                last = op if op.lane == Lane.COMPUTE else last
                yield op
        if self._offloaded(layer) and not early:
            yield Op(kind=Kind.FETCH, layer=layer, lane=Lane.H2D, after=(last.name,))
        yield from self._attention(layer, Kind.FETCH)

    def prefill_layer(self, layer: int, mode: str) -> Iterator[Op]:
        early = self._runtime.early
        if early:
            # Earlier blocks are known from the start: one layer ahead, the first two at once.
            yield from self._stage(layer + 1, source=layer) if layer else self._first_stages()
        yield from _ops(layer, Kind.PROJECT, Kind.ENTRIES, Kind.APPEND)
        if mode == "selector":
            for kind in self._selector.operations(layer, self._phase, 0):
                yield Op(kind=kind, layer=layer)
        if not early:
            yield from self._stage(layer, source=layer)
        yield from self._attention(layer, Kind.STAGE)

    def _selection(self, target: int, *, source: int) -> Iterator[Op]:
        for kind in self._selector.operations(target, self._phase, target - source):
            yield Op(kind=kind, layer=target, source=source)
        if self._offloaded(target):
            diff = Op(kind=Kind.DIFF, layer=target, source=source)
            yield diff
            if self._runtime.early:
                yield Op(kind=Kind.FETCH, layer=target, source=source, lane=Lane.H2D, after=(diff.name,))

    def _first_stages(self) -> Iterator[Op]:
        yield from self._stage(0, source=0)
        yield from self._stage(1, source=0)

    def _stage(self, layer: int, *, source: int) -> Iterator[Op]:
        """Earlier blocks of `layer` into a staging buffer. There are two, so it waits for the one before last."""
        if layer >= self._shape.layers or not self._offloaded(layer):
            return
        reader = Op(kind=Kind.ATTEND, layer=layer - 2) if layer >= 2 else None
        wait = reader if self._runtime.early else Op(kind=Kind.APPEND, layer=layer)
        yield Op(kind=Kind.STAGE, layer=layer, source=source, lane=Lane.H2D, after=(wait.name,) if wait else ())

    def _attention(self, layer: int, transfer: Kind) -> Iterator[Op]:
        after = (f"{transfer}/{layer}",) if self._offloaded(layer) else ()
        yield Op(kind=Kind.ATTEND, layer=layer, after=after)
        yield from _ops(layer, Kind.OUTPUT, Kind.MLP)

    def _offloaded(self, layer: int) -> bool:
        return layer >= self._resident


def _ops(layer: int, *kinds: Kind) -> Iterator[Op]:
    return (Op(kind=kind, layer=layer) for kind in kinds)
