"""The reference release's decode step as a StepPlan: one operation a kernel, in the order the host launches them.

Four modes, as its benchmark runs them. Everything waits on one compute stream, save the copy kernel of the
mode with prefetch, which the host launches on a second stream after *all* launches of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.published.kernels import WORK, Load, Paces
from sparda_core.published.table import Mode
from sparda_core.shapes import ModelShape
from sparda_core.simulator.run import WorkOfOp
from sparda_core.work import Work, WorkContext

#: From this batch on the release takes 32 copy CTAs on an H100, below it 16.
MANY_ROWS = 32

_TAIL_OF_LAYER = (
    "attend-combine", Kind.OUTPUT, "output-scale", "output-add", "norm-mlp", Kind.MLP, "mlp-activation", "mlp-down",
    "mlp-scale", "mlp-add",
)  # fmt: skip
_CONTIGUOUS = ("query-copy", "key-copy", "value-copy", "rotary")
_GRAPH = ("select-copy", "select-pool", "select-topk")
_QUERY = ("score-query", "score", "score-copy", *_GRAPH)
_FORECAST = ("score-forecast-query", "score-copy-entries", "score-forecast")


@attrs.frozen(kw_only=True)
class ReferenceRuntime:
    """Writes the plan of one mode."""

    mode: Mode

    @property
    def selector(self) -> str:
        """Name of the selector that the mode amounts to."""
        return "forecast" if self.forecast else "query"

    @property
    def forecast(self) -> bool:
        """Whether the Forecast selects."""
        return self.mode in (Mode.NO_PREFETCH, Mode.PREFETCH)

    def resident_layers(self, shape: ModelShape) -> int:
        """First layers that are not offloaded."""
        return shape.layers if self.mode == Mode.RESIDENT else int(self.forecast)

    def copy_ctas(self, rows: int) -> int:
        """Thread blocks of the copy kernel, by the release's rule for an H100."""
        return 32 if rows >= MANY_ROWS else 16

    def decode_plan(self, shape: ModelShape) -> StepPlan:
        """One decode step."""
        ops = [Op(kind=Kind.EMBED), Op(kind="positions")]
        for layer in range(shape.layers):
            ops += self._layer(layer, shape)
        ops += [Op(kind=kind) for kind in ("norm-out", Kind.HEAD, "logits-float", "argmax")]
        return StepPlan(
            ops=ops, phase=Phase.DECODE, runtime=f"reference {self.mode}", selector=self.selector,
            lead=int(self.mode == Mode.PREFETCH), resident_layers=self.resident_layers(shape), engine="uva",
        )  # fmt: skip

    def _layer(self, layer: int, shape: ModelShape) -> Iterator[Op]:
        yield from _ops(layer, "norm-in", "qkv-forecast" if self.forecast else "qkv", *_CONTIGUOUS)
        if self.forecast:
            yield from _ops(layer, "rotary-forecast")
        yield from _ops(layer, "window")
        if self.mode == Mode.PREFETCH:
            yield from self._ahead(layer, shape)
        else:
            yield from self._in_line(layer)
        yield from self._attention(layer)
        if self.mode == Mode.PREFETCH and layer + 1 < shape.layers:
            yield from _prefetch(layer + 1)

    def _ahead(self, layer: int, shape: ModelShape) -> Iterator[Op]:
        """The next layer's selection; the first layer's own comes after it."""
        if layer:
            yield from _ops(layer, "tail")
        if layer + 1 < shape.layers:
            kinds = (*_FORECAST, "score-copy", *_GRAPH, Kind.DIFF, "diff-map")
            yield from (Op(kind=kind, layer=layer + 1, source=layer) for kind in kinds)
        if not layer:
            yield from self._in_line(layer)

    def _in_line(self, layer: int) -> Iterator[Op]:
        """A layer's own selection and, in the same stream, its transfer."""
        fused_tail = self.forecast and layer
        if fused_tail:
            yield from _ops(layer, "tail")
        yield from _ops(layer, *((*_FORECAST, *_GRAPH) if self.forecast else _QUERY))
        if not fused_tail:
            yield from _ops(layer, "length", "tail-key", "tail-value")
        yield from _ops(layer, Kind.DIFF, "diff-map")
        if self.mode == Mode.RESIDENT or (self.forecast and not layer):
            yield from _ops(layer, "copy-keys", "copy-values")
        else:
            before = f"diff-map/{layer}"
            for kind in ("fetch-keys", "fetch-values", "fetch-ramp"):
                yield Op(kind=kind, layer=layer, lane=Lane.H2D, after=(before,))

    def _attention(self, layer: int) -> Iterator[Op]:
        last: tuple[str, ...] = ()
        if self.mode == Mode.SYNC or (self.mode == Mode.NO_PREFETCH and layer):
            last = (f"fetch-ramp/{layer}",)
        elif self.mode == Mode.PREFETCH and layer:
            last = (f"{Kind.FETCH}/{layer}",)
        yield Op(kind=Kind.ATTEND, layer=layer, after=last)
        yield from _ops(layer, *_TAIL_OF_LAYER)


def work_of(runtime: ReferenceRuntime, context: WorkContext, paces: Paces) -> WorkOfOp:
    """States the work of the plan's operations under the facts of a step."""

    def work(op: Op, facts: StepFacts) -> Work:
        load = Load(
            layer=op.source, rows=facts.rows, context=int(facts.lengths.max()),
            misses=int(facts.misses[max(0, op.layer)].sum()), copy_ctas=runtime.copy_ctas(facts.rows), work=context,
            paces=paces,
        )  # fmt: skip
        return WORK[op.kind](load)

    return work


def host_launches(plan: StepPlan, work: WorkOfOp, facts: StepFacts) -> int:
    """What the host launches in a step: kernels and graphs, and in the mode with prefetch its event calls as one."""
    return sum(work(op, facts).launches for op in plan.ops)


def _ops(layer: int, *kinds: str) -> Iterator[Op]:
    return (Op(kind=kind, layer=layer) for kind in kinds)


def _prefetch(layer: int) -> Iterator[Op]:
    source = layer - 1
    yield Op(kind="events", layer=layer, source=source, lane=Lane.HOST)
    yield Op(kind="fetch-walk", layer=layer, source=source, lane=Lane.H2D, after=(f"diff-map/{layer}",))
    yield Op(kind=Kind.FETCH, layer=layer, source=source, lane=Lane.H2D)
