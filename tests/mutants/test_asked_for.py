"""Tests that a mutant asked for: it was put in, and nothing noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.kernels.topk.cpu import choose_blocks as choose_on_a_cpu
from sparda_core.kernels.topk.reference import choose_blocks as choose_plainly
from sparda_core.plan import Kind
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.session import CpuSession
from tests.agreement.worlds import SHAPE, SPEC, TOKENS
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


def test_the_first_token_that_is_not_reserved_is_refused_and_the_last_that_is_has_its_place() -> None:
    """A compiled look-up trusts what it is given: one position too many is a read beyond the table."""
    store = BlockStore(layers=(0,), kv_heads=2, block=4, head_dim=2, page_blocks=2)
    store.add(7)
    store.reserve(7, 9)
    assert store.reserved(7) == 16
    assert (store.physical_at(0, (7,), np.array([[15]])) >= 0).all()
    with pytest.raises(ConfigError, match=r"positions=\[\[16\]\] must be below the tokens reserved, \[16\]"):
        store.physical_at(0, (7,), np.array([[16]]))


def test_a_stage_waits_for_the_last_reader_of_its_buffer() -> None:
    """There are two buffers: layer l is staged into that of layer l - 2, which must have attended."""
    plan = RUNTIMES.make("offload-prefetch").prefill_plan(
        shape=SHAPE, spec=SPEC, selector=SELECTORS.make("forecast"), mode="dense"
    )
    staged = [op for op in plan if op.kind == Kind.STAGE and op.layer >= 2]
    assert [op.layer for op in staged] == list(range(2, SHAPE.layers))
    for op in staged:
        assert op.after == (f"attend/{op.layer - 2}",)


def test_of_two_equal_blocks_the_higher_id_makes_room_for_a_better_one() -> None:
    """A tie that is decided late: both are in until the third comes."""
    scores = torch.full((1, 1, 1, 10), -1.0)
    scores[..., 1:4] = torch.tensor([1.0, 1.0, 2.0])
    for choose in (choose_on_a_cpu, choose_plainly):
        assert choose(scores, torch.tensor([[9 * SPEC.block]]), SPEC).flatten().tolist() == [0, 1, 3, 8, 9]


def test_a_written_file_takes_the_place_of_the_old_one_which_is_never_written_to(tmp_path: Path) -> None:
    """Who still has the old file open reads it whole; and no moment has half of each."""
    path, old = tmp_path / "a.txt", tmp_path / "old.txt"
    write_whole(path, "the old one")
    old.hardlink_to(path)
    write_whole(path, "new")
    assert (path.read_text(), old.read_text()) == ("new", "the old one")
