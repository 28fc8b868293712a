"""StepFacts: everything about one run of a plan that depends on data."""

from __future__ import annotations

import json
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.fields import require
from sparda_core.files import parse_json
from sparda_core.shapes import BlockSpec, ModelShape, check_integer

#: Most counts (layer, row, KV head) of one step: half a gigabyte of them.
_MOST_COUNTS = 10**7

IntArray = npt.NDArray[np.int64]
_same = attrs.cmp_using(eq=np.array_equal)


def _ints(value: npt.ArrayLike) -> IntArray:
    return np.ascontiguousarray(value, dtype=np.int64)


def _flags(value: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    return np.ascontiguousarray(value, dtype=np.bool_)


@attrs.frozen(kw_only=True)
class StepFacts:
    """What one step met. L layers, B rows, Hk KV heads.

    new_tokens  tokens processed per active row (1 in decode)
    budget      width of the selections
    slots       slots per row and KV head of an offloaded layer; 0 where every layer is resident
    active      bool [B]
    lengths     int64 [B], tokens in the cache after the step; 0 for an inactive row
    selected    int64 [L, B, Hk], blocks selected; hits + misses = selected
    misses      int64 [L, B, Hk], selected blocks that had to be transferred
    opened      int64 [L, B, Hk], selected blocks opened by this step's own token: hits, no transfer
    late        int64 [L, B, Hk], misses that had not arrived when the compute lane wanted them
    wasted      int64 [L, B, Hk], blocks that were transferred once and evicted unread in this step
    """

    new_tokens: int
    budget: int
    slots: int
    active: npt.NDArray[np.bool_] = attrs.field(converter=_flags, eq=_same)
    lengths: IntArray = attrs.field(converter=_ints, eq=_same)
    selected: IntArray = attrs.field(converter=_ints, eq=_same)
    misses: IntArray = attrs.field(converter=_ints, eq=_same)
    opened: IntArray = attrs.field(converter=_ints, eq=_same)
    late: IntArray = attrs.field(converter=_ints, eq=_same)
    wasted: IntArray = attrs.field(converter=_ints, eq=_same)

    def __attrs_post_init__(self) -> None:
        shape = self.selected.shape
        if len(shape) != 3 or shape[1] != self.active.size or self.lengths.shape != self.active.shape:
            raise ConfigError(f"facts: selected {shape} must be [L, B, Hk] with B={self.active.size} rows")
        for name in ("misses", "opened", "late", "wasted"):
            if getattr(self, name).shape != shape:
                raise ConfigError(f"facts: {name} has shape {getattr(self, name).shape}, selected has {shape}")
        for name in ("selected", "misses", "opened", "late", "wasted", "lengths"):
            if (getattr(self, name) < 0).any():
                raise ConfigError(f"facts: {name} has a negative count")
        for name, low, high in (
            ("misses", self.misses, self.selected),
            ("opened", self.opened, self.selected - self.misses),
            ("late", self.late, self.misses),
        ):
            if (low > high).any():
                raise ConfigError(f"facts: {name} exceeds what it is a part of")
        if self.selected[:, ~self.active].any() or self.lengths[~self.active].any():
            raise ConfigError("facts: an inactive row must have length 0 and select nothing")

    @property
    def hits(self) -> IntArray:
        """int64 [L, B, Hk]: selected blocks that were already on the device."""
        return self.selected - self.misses

    @property
    def rows(self) -> int:
        """Active rows."""
        return int(self.active.sum())

    def to_json(self) -> str:
        """The facts as JSON; `from_json` gives equal facts back."""
        plain = attrs.asdict(self, value_serializer=lambda _, __, v: v.tolist() if isinstance(v, np.ndarray) else v)
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> StepFacts:
        """Read and validate facts; raises RecordingError when they are malformed."""
        try:
            raw = dict(require(parse_json(text), "facts", new_tokens=int, budget=int, slots=int))
            for name, least in (("new_tokens", 1), ("budget", 1), ("slots", 0)):
                check_integer(name, raw[name], least)
            known = {name: _counts(name, value) for name, value in raw.items() if name in _ARRAYS}
            return cls(**{**raw, **known})
        except (OverflowError, TypeError, ValueError) as wrong:
            raise RecordingError(f"facts are malformed: {wrong}") from wrong


_ARRAYS = ("active", "lengths", "selected", "misses", "opened", "late", "wasted")


def _counts(name: str, value: Any) -> npt.NDArray[Any]:
    """An array of facts; raises TypeError or ValueError for lists of anything but counts (`active`: truth values)."""
    if not isinstance(value, list):
        raise TypeError(f"{name} is {type(value).__name__}, must be a list")
    array = np.array(value)
    if array.size and array.dtype.kind != ("b" if name == "active" else "i"):
        raise TypeError(f"{name} holds {array.dtype}, must hold {'truth values' if name == 'active' else 'counts'}")
    return array


def steady_facts(
    *, shape: ModelShape, spec: BlockSpec, batch: int, context: int, churn: float,
    resident_layers: int = 0, slots: int | None = None,
) -> StepFacts:  # fmt: skip
    """Facts of one decode step in a steady state, from a miss share.

    churn  share of a selection that must be transferred, in [0, 1]; fractions of a block are spread
           evenly over layers, rows and heads, so that the sum is right to one block
    The first `resident_layers` layers miss nothing.
    """
    if not 0 <= churn <= 1:
        raise ConfigError(f"churn={churn} must be in [0, 1]")
    check_integer("batch", batch, 1)
    check_integer("context", context, 1)
    if shape.layers * batch * shape.kv_heads > _MOST_COUNTS:
        raise ConfigError(f"batch={batch} must be <= {_MOST_COUNTS // (shape.layers * shape.kv_heads)} for this shape")
    selected = min(spec.budget, spec.block_count(context))
    size = (shape.layers, batch, shape.kv_heads)
    edges = np.floor(np.arange(np.prod(size) + 1) * (churn * selected) + 1e-9)
    misses = np.diff(edges).reshape(size)
    misses[:resident_layers] = 0
    none = np.zeros(size, np.int64)
    return StepFacts(
        new_tokens=1, budget=spec.budget, slots=spec.budget if slots is None else slots,
        active=np.ones(batch), lengths=np.full(batch, context), selected=np.full(size, selected),
        misses=misses, opened=none, late=none, wasted=none,
    )  # fmt: skip
