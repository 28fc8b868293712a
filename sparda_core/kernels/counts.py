"""What a step's active rows look at, counted from the facts. The base of every `work.py`; free of torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.shapes import BlockSpec

Ints = npt.NDArray[np.int64]


def query_positions(facts: StepFacts) -> Ints:
    """int64 [rows, T]: absolute positions of the new tokens of every active row."""
    return facts.lengths[facts.active, None] - facts.new_tokens + np.arange(facts.new_tokens)


def new_token_count(facts: StepFacts) -> int:
    """New tokens of all active rows."""
    return facts.rows * facts.new_tokens


def entry_counts(tokens: Ints, spec: BlockSpec) -> Ints:
    """Full windows in each of these token counts; `BlockSpec.entry_count` for arrays."""
    return np.maximum(0, (tokens - spec.window) // spec.stride + 1)


def known_entries(op: Op, facts: StepFacts, spec: BlockSpec) -> Ints:
    """int64 [rows]: entries a scoring finds; one that runs layers early misses those of the new tokens."""
    early = facts.new_tokens if op.source < op.layer else 0
    return entry_counts(facts.lengths[facts.active] - early, spec)


def visible_entries(op: Op, facts: StepFacts, spec: BlockSpec) -> Ints:
    """int64 [rows, T]: entries that each query sees, those whose last token is no later than it."""
    ended = entry_counts(query_positions(facts) + 1, spec)
    return np.minimum(ended, known_entries(op, facts, spec)[:, None])


def seen_blocks(facts: StepFacts, spec: BlockSpec) -> int:
    """Blocks up to its own that each query could choose from, summed over the queries of one KV head."""
    return int((query_positions(facts) // spec.block + 1).sum())
