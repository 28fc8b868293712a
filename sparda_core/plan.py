"""StepPlan: one decode step, or one prefill chunk, written down once for every executor.

A plan is static structure. Whatever depends on data is named in StepFacts and read when the plan runs.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from sparda_core.errors import PlanError
from sparda_core.fields import require
from sparda_core.files import parse_json

#: `Op.layer` of an operation that belongs to the whole model (embedding, head).
WHOLE_MODEL = -1


class Lane(enum.StrEnum):
    """A stream: operations of one lane run in the order written, lanes run side by side."""

    COMPUTE = "compute"
    H2D = "h2d"
    D2H = "d2h"
    HOST = "host"


class Phase(enum.StrEnum):
    """What one run of the plan processes: one token a row, or a chunk of tokens."""

    DECODE = "decode"
    PREFILL = "prefill"


class Kind(enum.StrEnum):
    """Kinds that a runtime writes. A selector adds its own (usually `score` and `select`)."""

    EMBED = "embed"  # token ids -> residual stream
    PROJECT = "project"  # norm; q, k, v and Forecast in one product; rotary embedding
    ENTRIES = "entries"  # append this layer's new entries (compressed keys)
    DIFF = "diff"  # selection against slots -> victims, compacted misses
    FETCH = "fetch"  # move the misses of a layer into their slots
    STAGE = "stage"  # prefill: move a layer's earlier blocks into the staging buffer
    APPEND = "append"  # K and V of the new tokens to their slot and through to the host store
    ATTEND = "attend"  # block-sparse (or dense) attention
    OUTPUT = "output"  # output projection and residual
    MLP = "mlp"  # norm, gated feed-forward, residual
    HEAD = "head"  # last norm and logits


@attrs.frozen(kw_only=True)
class Op:
    """One operation.

    kind    key of the binding that runs it and of the function that states its work
    layer   the layer whose data it is for (the *target* of a selection); WHOLE_MODEL for none
    source  the layer during which it runs; differs from `layer` where something is known early
    after   names of operations, of any lane, that must have ended before it starts
    """

    kind: str
    layer: int = WHOLE_MODEL
    source: int = attrs.field()
    lane: Lane = Lane.COMPUTE
    after: tuple[str, ...] = ()

    @source.default
    def _same_layer(self) -> int:
        return self.layer

    @property
    def name(self) -> str:
        """`kind` or `kind/layer`, unique in a plan."""
        return str(self.kind) if self.layer == WHOLE_MODEL else f"{self.kind}/{self.layer}"


def _op(raw: object) -> Op:
    """An operation of a plan file; raises TypeError or ValueError for anything else."""
    op = require(raw, "op", kind=str, layer=int, source=int, lane=str, after=list)
    if not op["kind"] or min(op["layer"], op["source"]) < WHOLE_MODEL:
        raise ValueError(f"op {op['kind']!r} of layer {op['layer']}, source {op['source']}: there is none")
    if not all(isinstance(name, str) for name in op["after"]):
        raise TypeError(f"op {op['kind']!r} waits for what is no name")
    return Op(
        kind=op["kind"], layer=op["layer"], source=op["source"], lane=Lane(op["lane"]), after=tuple(op["after"])
    )


def _as_tuple(ops: Iterable[Op]) -> tuple[Op, ...]:
    return tuple(ops)


@attrs.frozen(kw_only=True)
class StepPlan:
    """Operations in the order they are issued, and what the plan was written for.

    An operation may wait only for operations issued before it, as on a device's streams: so a lawful
    plan has no cycle and no wait that never ends. Raises PlanError otherwise.
    """

    ops: tuple[Op, ...] = attrs.field(converter=_as_tuple)
    phase: Phase
    runtime: str
    selector: str
    lead: int
    resident_layers: int
    engine: str

    @ops.validator
    def _lawful(self, attribute: attrs.Attribute[Any], ops: tuple[Op, ...]) -> None:
        if not ops:
            raise PlanError("plan has no operations")
        issued: set[str] = set()
        every = {op.name for op in ops}
        for op in ops:
            if op.name in issued:
                raise PlanError(f"op {op.name!r} appears twice; names must be unique in a plan")
            for wait in op.after:
                if wait not in every:
                    raise PlanError(f"op {op.name!r} waits for {wait!r}, which is not in the plan")
                if wait not in issued:
                    raise PlanError(f"op {op.name!r} waits for {wait!r}, which is issued later: it would never start")
            issued.add(op.name)

    def lane(self, lane: Lane) -> tuple[Op, ...]:
        """Operations of one lane, in order."""
        return tuple(op for op in self.ops if op.lane == lane)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __getitem__(self, name: str) -> Op:
        for op in self.ops:
            if op.name == name:
                return op
        raise PlanError(f"op {name!r} is not in the plan")

    def __contains__(self, name: object) -> bool:
        return any(op.name == name for op in self.ops)

    def predecessors(self, op: Op) -> tuple[str, ...]:
        """Everything `op` waits for: its `after`, and the operation before it on its lane."""
        lane = self.lane(op.lane)
        at = lane.index(op)
        return (*op.after, *((lane[at - 1].name,) if at else ()))

    def to_json(self) -> str:
        """The plan as JSON; `from_json` gives an equal plan back."""
        return json.dumps(attrs.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> StepPlan:
        """Read and validate a plan; raises PlanError when it is malformed."""
        try:
            raw = dict(
                require(
                    parse_json(text), "plan", ops=list, phase=str, runtime=str, selector=str, lead=int,
                    resident_layers=int, engine=str,
                )
            )  # fmt: skip
            if min(raw["lead"], raw["resident_layers"]) < 0:
                raise PlanError("lead and resident_layers of a plan must be >= 0")
            ops = [_op(one) for one in raw.pop("ops")]
            return cls(ops=ops, **{**raw, "phase": Phase(raw["phase"])})
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as wrong:
            if isinstance(wrong, PlanError):
                raise
            raise PlanError(f"plan file is malformed: {wrong!r}") from wrong
