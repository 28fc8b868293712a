"""Policies: which blocks stay in an offloaded layer's slots when its selection changes."""

from __future__ import annotations

from sparda_core.errors import UnknownNameError

LAST_SELECTION, LRU, SCORE = "last-selection", "lru", "score"

#: last-selection  what the current selection leaves out is dropped at once, however many slots there are
#: lru             the least recently selected block goes when a slot is needed
#: score           the block that the current selection's scores rank last goes when a slot is needed; blocks
#:                 without a score first. For selectors that make scores
#: Empty slots are filled first, the lowest first; equal blocks go by slot, the lowest first; no block of the
#: current selection ever goes.
POLICIES = (LAST_SELECTION, LRU, SCORE)
#: Pools, in selections, whose misses under "score" a recording keeps: later nobody has the scores.
SCORED_POOLS = (1, 2, 4)


def check_policy(policy: str) -> None:
    """Raise UnknownNameError for a policy that nobody knows."""
    if policy not in POLICIES:
        raise UnknownNameError(what="policy", name=policy, known=POLICIES)
