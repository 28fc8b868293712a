"""Work of a diff: it reads the slot tables and a selection, and writes both, for every row and KV head.

Sizes are those of the CPU's 64-bit tables; a GPU's 32-bit ones take about half. Either is next to nothing.
"""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.policy import LAST_SELECTION
from sparda_core.work import Work, WorkContext

#: Slot table: logical block (8), tick (8), unread (1).
_SLOT_BYTES = 17
#: A selected block: its id (4) read, its place (8) written.
_SELECTED_BYTES = 12
#: A miss: row, head, block, slot.
_MISS_BYTES = 32


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Bytes of tables and lists; one thread block a (row, KV head); no arithmetic worth counting.

    The policy of the last selection empties what it left out; any other looks for victims among all slots.
    """
    pairs = facts.rows * context.shape.kv_heads
    selected = pairs * facts.new_tokens * facts.budget
    misses = float(facts.misses[op.layer].sum())
    return Work(
        hbm_bytes=2 * pairs * facts.slots * _SLOT_BYTES + selected * _SELECTED_BYTES + misses * _MISS_BYTES, ctas=pairs,
        searched=0.0 if context.policy == LAST_SELECTION else float(facts.slots),
    )  # fmt: skip
