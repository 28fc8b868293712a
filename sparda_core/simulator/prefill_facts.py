"""Facts of a prefill, chunk by chunk. A prefill misses nothing: it stages earlier blocks whole, by its plan."""

from __future__ import annotations

import numpy as np

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec, ModelShape, check_integer

#: Ways to prefill; the words of `Runtime.prefill_plan`.
MODES = ("dense", "selector")
#: Most chunks of one prefill: as many as take a minute to simulate.
_MOST_CHUNKS = 10**5
#: Most counts (chunk, layer, row, KV head) of one prefill: a gigabyte of them.
_MOST_COUNTS = 10**8


def prefill_facts(
    shape: ModelShape, spec: BlockSpec, *, tokens: int, chunk: int = 2048, batch: int = 1, mode: str = "dense",
    offset: int = 0, slots: int | None = None,
) -> tuple[StepFacts, ...]:  # fmt: skip
    """One StepFacts a chunk, for `batch` rows that read `tokens` tokens each, after `offset` that they hold.

    chunk  tokens of a row per chunk; the last chunk takes what is left
    mode   "dense": nothing is selected, every query attends to all before it; "selector": each to its own
           selection, which `selected` adds up over the chunk's queries. A dense chunk of one token counts every
           block as selected: to a single query the two are the same
    slots  of an offloaded layer, None: as many as the budget; 0 where no layer is offloaded (nothing is
           written through to the host store)
    Raises ConfigError, UnknownNameError (mode).
    """
    for name, value, least in (
        ("tokens", tokens, 1), ("chunk", chunk, 1), ("batch", batch, 1), ("offset", offset, 0),
        ("slots", 0 if slots is None else slots, 0),
    ):  # fmt: skip
        check_integer(name, value, least)
    if mode not in MODES:
        raise UnknownNameError(what="mode", name=mode, known=MODES)
    if -(-tokens // chunk) > _MOST_CHUNKS:
        raise ConfigError(f"chunk={chunk} cuts tokens={tokens} into more than {_MOST_CHUNKS} chunks; raise chunk")
    most = _MOST_COUNTS // (shape.layers * shape.kv_heads * -(-tokens // chunk))
    if batch > most:
        raise ConfigError(f"batch={batch} must be <= {most} for tokens={tokens} in chunks of {chunk}; lower it")
    size = (shape.layers, batch, shape.kv_heads)
    none, stop = np.zeros(size, np.int64), offset + tokens
    made = []
    for start in range(offset, stop, chunk):
        end = min(start + chunk, stop)
        made.append(
            StepFacts(
                new_tokens=end - start, budget=spec.budget, slots=spec.budget if slots is None else slots,
                active=np.ones(batch), lengths=np.full(batch, end),
                selected=none + _selected(spec, start, end, mode), misses=none, opened=none, late=none, wasted=none,
            )
        )  # fmt: skip
    return tuple(made)


def _selected(spec: BlockSpec, start: int, end: int, mode: str) -> int:
    """Blocks that one KV head's queries at positions [start, end) select in all."""
    blocks = np.arange(start, end) // spec.block + 1
    if mode == "selector":
        return int(np.minimum(blocks, spec.budget).sum())
    return int(blocks[0]) if end - start == 1 else 0
