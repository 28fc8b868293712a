"""How much memory a training step takes, worked out from sizes alone: what `sparda train --plan` shows.

Nothing of it grows with the number of queries times the number of keys: scores live for as many queries at once as
`chunk_mib` holds. What grows with the window is one layer's activations, its keys in float32 and masks of a bit a
query and entry.
"""

from __future__ import annotations

import attrs

from sparda_core.distill.config import TrainConfig
from sparda_core.distill.learn import query_bytes
from sparda_core.distill.own_states import DENSE
from sparda_core.distill.teachers import Grid
from sparda_core.shapes import ModelShape

_WIDE = 4  # bytes of a float32


@attrs.frozen(kw_only=True)
class MemoryPlan:
    """Bytes on one device, by what they are for.

    model        the frozen weights that lie there
    optimiser    Forecast weights, their gradients and two moments, float32
    activations  one layer of one row: the residual stream, projections, attention or feed-forward
    lesson       that layer's keys, entries and queries in float32, and masks
    scores       teacher's and student's scores of the queries asked at once
    full         what scores and targets of all queries would take at once: [Hk, Q, J] twice, never made
    """

    model: int
    optimiser: int
    activations: int
    lesson: int
    scores: int
    full: int

    @property
    def peak(self) -> int:
        """Sum of all that is there at once."""
        return self.model + self.optimiser + self.activations + self.lesson + self.scores


def plan_memory(
    shape: ModelShape, config: TrainConfig, *, value_bytes: int = 2, processes: int = 1, shared_out: bool = False
) -> MemoryPlan:
    """Memory of one process of a run on `shape`.

    value_bytes  of a value of the frozen model: 2 for bfloat16
    processes    that share the run; with `shared_out` they also share the model's layers
    """
    spec, grid = config.spec, Grid.parse(config.teacher, config.spec)
    tokens, asked = config.window, min(config.positions, config.window)
    q_width, k_width = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    entries, blocks = spec.entry_count(tokens), spec.block_count(tokens)

    tables = (1 if shape.tied_embeddings else 2) * shape.vocab * shape.hidden
    layers = shape.layers * shape.layer_weights
    if shared_out:  # a part of every layer, and two whole ones: that which runs and the next
        layers = -(-layers // processes) + 2 * shape.layer_weights
        tables = shape.vocab * shape.hidden
    stream = tokens * shape.hidden
    # rotary turns queries and keys in float32, three copies at once; attention sees keys and values a query head each
    project = value_bytes * tokens * (q_width + 2 * k_width) + 3 * _WIDE * tokens * (q_width + k_width)
    attend = value_bytes * tokens * (2 * q_width + 2 * k_width + 3 * q_width)
    feed = value_bytes * tokens * 4 * shape.ffn
    if config.states != DENSE:  # inputs of `lead` layers, keys in float32, and logits of a chunk of queries
        inputs, keys = value_bytes * config.lead * stream, _WIDE * k_width * (tokens + entries)
        attend += inputs + keys + min(config.chunk_mib * 2**20, 3 * value_bytes * shape.q_heads * tokens**2)
    activations = value_bytes * 3 * stream + max(project, attend, feed)
    teacher_keys = k_width * (tokens // grid.stride)
    lesson = _WIDE * (k_width * (tokens + entries) + teacher_keys + asked * (2 * shape.hidden + q_width + 5 * k_width))
    lesson += asked * (entries + blocks)
    one = query_bytes(
        tokens=tokens, entries=entries, groups=shape.kv_heads, heads=shape.q_heads, stride=grid.stride, size=_WIDE
    )
    at_once = min(asked, max(1, config.chunk_mib * 2**20 // one))
    return MemoryPlan(
        model=value_bytes * (tables + layers),
        optimiser=(5 if processes > 1 else 4) * _WIDE * shape.layers * shape.forecast_weights,
        activations=activations,
        lesson=lesson,
        scores=at_once * one,
        full=2 * _WIDE * shape.kv_heads * tokens * (tokens // grid.stride),
    )
