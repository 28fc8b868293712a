"""The partly filled last block of a row has its slot in every offloaded layer, whatever was done between two steps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agreement.worlds import TOKENS, pair


@pytest.mark.parametrize("options", [{}, {"policy": "lru", "slots": 9}, {"policy": "score", "slots": 9}])
@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
def test_a_smaller_budget_leaves_the_tail_where_the_next_step_writes_to_it(
    runtime: str, options: dict[str, Any]
) -> None:
    """All blocks of a selection are of one age, and the tail is the last of them: it went first when slots got fewer.

    Then the next step copied it from the host while it wrote the new token into it.
    """
    with pair("random", runtime, runtime_options=options).open_cpu() as session:
        row = session.add()
        session.prefill(row, TOKENS[:57])
        for token in TOKENS[57:66]:  # a block opened on the way lies in any slot
            session.decode({row: token})
        for budget in (3, 8, 4, 3):
            session.set_budget(budget)
            for pool in session._tiers.pools.values():
                last = session.length(row) // session.spec.block
                assert (pool.resident(row) == last).any(-1).all()
            session.decode({row: 1})
