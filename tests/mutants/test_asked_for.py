"""Tests that a mutant asked for: it was put in, and nothing noticed."""

from __future__ import annotations

import numpy as np
import pytest

from sparda_core.runtimes.session import CpuSession
from tests.agreement.worlds import SPEC, TOKENS
from tests.chaos.story import PAIRS, opened

OFFLOADED = [pair for pair in PAIRS if pair[1] != "resident"]


def tails_have_slots(session: CpuSession) -> bool:
    """Whether the partly filled last block of every row lies in a slot, in every offloaded layer and head."""
    for row in session.rows:
        tail, filled = divmod(session.length(row), SPEC.block)
        if filled and any((pool.slot_of(row, np.array([tail])) < 0).any() for pool in session._tiers.pools.values()):
            return False
    return True


@pytest.mark.parametrize("pair", OFFLOADED)
def test_the_partly_filled_last_block_has_its_slot_before_a_step_whatever_came_before(
    pair: tuple[str, str, dict[str, int]],
) -> None:
    """Else a prefetch could copy the block while the new token is written into it (docs/design.md, the tail rule)."""
    with opened(*pair) as session:
        row = session.add()
        session.prefill(row, TOKENS[:61], chunk=13)
        assert tails_have_slots(session)
        session.fork(row)
        assert tails_have_slots(session)
        session.decode({row: 3})
        session.crop(row, 42)
        assert tails_have_slots(session)
        session.adopt(session.snapshot(row))
        assert tails_have_slots(session)
        session.set_budget(SPEC.budget + 1)
        assert tails_have_slots(session)
