"""Faults that the tests of this folder found, each once more by itself."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.errors import CapacityError, LaneError, SpardaError
from sparda_core.files import write_whole
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane
from sparda_core.runtimes.entry_store import EntryStore
from sparda_core.runtimes.pages import PagePool
from sparda_core.runtimes.rows import RowTable
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.slot_pool import SlotPool
from sparda_core.runtimes.tiers import Tiers
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.tensors.infinigen import BoundInfiniGen
from sparda_core.selectors.tensors.partial_keys import TokenScorer
from sparda_core.selectors.tensors.row_buffer import RowBuffer
from tests.agreement.worlds import MODEL, SPEC, TOKENS
from tests.chaos.cuts import Cut
from tests.chaos.story import PAIRS, opened

PREFETCH, INFINIGEN = PAIRS[0], PAIRS[1]


def after(calls: int, work: Callable[..., Any], wrong: BaseException) -> Callable[..., Any]:
    """`work`, until it has been called so often; the call after that raises, and the later ones work again."""
    left = [calls]

    @functools.wraps(work)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise wrong
        return work(*args, **kwargs)

    return wrapper


def filled(session: CpuSession, *tokens: int) -> list[int]:
    rows = [session.add() for _ in tokens]
    for row, count in zip(rows, tokens, strict=True):
        session.prefill(row, TOKENS[:count])
    return rows


@pytest.mark.parametrize("part", [EntryStore, SlotPool])
def test_a_row_that_found_no_room_in_one_part_is_in_none(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session:
        filled(session, 20)
        with monkeypatch.context() as patch:
            patch.setattr(part, "add", after(0, part.add, MemoryError()))
            with pytest.raises(MemoryError):
                session.add()
        assert session.add() == 1, "its id is as good as new"


def test_a_budget_for_which_one_pool_found_no_room_is_that_of_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session, opened(*PREFETCH) as calm:
        for each in (session, calm):
            filled(each, 60)
        for budget in (SPEC.budget + 2, SPEC.budget - 1):
            with monkeypatch.context() as patch:
                full = CapacityError(tier="slots", need=2, free=1, unit="bytes", hint="retire rows")
                patch.setattr(SlotPool, "resize", after(1, SlotPool.resize, full))
                with pytest.raises(CapacityError):
                    session.set_budget(budget)
            got, want = (each.decode({0: 3}) for each in (session, calm))
            np.testing.assert_array_equal(got.logits.numpy(), want.logits.numpy())
            np.testing.assert_array_equal(got.facts.misses, want.facts.misses)


def test_infinigen_calibrates_again_where_it_found_no_room_for_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row counted as calibrated without its keys is answered wrongly, and nobody is told."""
    with opened(*INFINIGEN) as session, opened(*INFINIGEN) as calm:
        for each in (session, calm):
            filled(each, 60)
        with monkeypatch.context() as patch:
            patch.setattr(RowBuffer, "append", after(0, RowBuffer.append, MemoryError()))
            with pytest.raises(MemoryError):
                session.decode({0: 3})
        got, want = (each.decode({0: 3}).logits for each in (session, calm))
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_store_that_could_not_grow_gives_no_page_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PagePool(page_blocks=2, block=4, head_dim=2, dtype=np.float32, limit_bytes=None, tier="host")
    pool.take(3)
    with monkeypatch.context() as patch:
        patch.setattr(np, "concatenate", after(0, np.concatenate, MemoryError()))
        with pytest.raises(MemoryError):
            pool.take(3)
    taken = pool.take(9).tolist()
    assert len(set(taken)) == 9
    assert pool.used == 12


def test_a_step_cut_between_the_lengths_of_two_rows_was_made_of_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session:
        first, second = filled(session, 20, 31)
        with monkeypatch.context() as patch:
            patch.setattr(Tiers, "commit", after(1, Tiers.commit, Cut()))
            with pytest.raises(Cut):
                session.decode({first: 1, second: 2})
        assert [session.length(row) for row in session.rows] == [20, 31]
        session.decode({first: 1, second: 2})
        assert [session.length(row) for row in session.rows] == [21, 32]


def test_a_fork_that_the_selector_could_not_follow_gives_its_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*INFINIGEN) as session:
        (row,) = filled(session, 31)
        session.decode({row: 1})
        held = session.used_bytes["host"]
        with monkeypatch.context() as patch:
            patch.setattr(RowBuffer, "copy", after(0, RowBuffer.copy, MemoryError()))
            with pytest.raises(MemoryError):
                session.fork(row)
        assert session.rows == (row,)
        assert session.used_bytes["host"] == held
        copy = session.fork(row)
        logits = session.decode({row: 4, copy: 4}).logits
        torch.testing.assert_close(logits[0], logits[1])
        session.retire(row)
        session.retire(copy)
        assert session.used_bytes["host"] == 0


def test_an_adopted_row_is_there_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session:
        (row,) = filled(session, 20)
        kept = session.snapshot(row)
        with monkeypatch.context() as patch:
            patch.setattr(Tiers, "commit", after(0, Tiers.commit, Cut()))
            with pytest.raises(Cut):
                session.adopt(kept)
        assert session.rows == (row,)
        assert session.length(session.adopt(kept)) == 20


def test_a_crop_or_a_retirement_that_is_cut_short_is_done_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session:
        first, second = filled(session, 44, 31)
        with monkeypatch.context() as patch:
            patch.setattr(EntryStore, "crop", after(0, EntryStore.crop, Cut()))
            with pytest.raises(Cut):
                session.crop(first, 9)
        assert session.length(first) == 9
        assert session._tiers.host.length(first) == 9
        assert session._tiers.entries.count(0, first) == SPEC.entry_count(9)
        with monkeypatch.context() as patch:
            patch.setattr(RowTable, "remove", after(1, RowTable.remove, Cut()))
            with pytest.raises(Cut):
                session.retire(second)
        assert session.rows == (first,)
        assert all(second not in pool.rows for pool in session._tiers.pools.values())


def test_a_lane_whose_thread_died_moves_again_once_it_is_mended() -> None:
    source = np.arange(32, dtype=np.float64).reshape(2, 2, 4, 2)
    job = CopyJob(source=source, target=np.zeros_like(source), source_ids=np.array([1]), target_ids=np.array([0]))
    with CopyLane() as lane:
        lane.mend()
        living = lane._thread
        lane.mend()
        assert lane._thread is living, "a lane that lives is left alone"
        lane._worker.jobs.put((None, None))  # type: ignore[arg-type]  # nothing a lane survives
        living.join()
        with pytest.raises(LaneError, match="broken"):
            lane.submit(job)
        lane.mend()
        lane.submit(job).wait()
    np.testing.assert_array_equal(job.target[0], source[1])
    lane.mend()
    with pytest.raises(LaneError, match="closed"):
        lane.submit(job)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_cropped_row_that_grows_again_is_as_one_that_never_was_longer(pair: tuple[str, str, dict[str, Any]]) -> None:
    with opened(*pair) as session, opened(*pair) as calm:
        for each in (session, calm):
            filled(each, 60)
        for token in (3, 1, 4, 1, 5, 9):
            session.decode({0: token})
        session.crop(0, 43)
        calm.crop(0, 43)
        for each in (session, calm):
            each.prefill(0, TOKENS[90:108], chunk=7)
        for token in (2, 6, 5, 3, 5, 8, 9, 7, 9):
            got, want = (each.decode({0: token}).logits for each in (session, calm))
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_an_interrupt_right_after_the_file_beside_was_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.open

    def cut(*given: Any) -> int:
        os.close(made(*given))
        raise Cut

    monkeypatch.setattr(os, "open", cut)
    with pytest.raises(Cut):
        write_whole(tmp_path / "a.json", "text")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def test_what_was_to_be_undone_and_was_interrupted_as_well_is_undone_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(*PAIRS[0]) as session, opened(*PAIRS[0]) as calm:
        for each in (session, calm):
            filled(each, 60)
        bytes_before = session.used_bytes
        with monkeypatch.context() as patch:
            patch.setattr(CpuSession, "_commit", after(0, CpuSession._commit, Cut()))
            patch.setattr(CpuSession, "_cut", after(0, CpuSession._cut, Cut()))
            with pytest.raises(Cut):
                session.prefill(0, TOKENS[:40])
        assert session.length(0) == 60
        assert session.used_bytes == bytes_before
        got, want = (each.decode({0: 5}).logits for each in (session, calm))
        assert torch.equal(got, want)


def test_a_session_that_cannot_undo_what_failed_closes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise MemoryError

    session = opened(*PREFETCH)
    assert session._lane is not None
    filled(session, 20)
    with monkeypatch.context() as patch:
        patch.setattr(CpuSession, "_commit", refused)
        patch.setattr(CpuSession, "_cut", refused)
        with pytest.raises(MemoryError):
            session.prefill(0, TOKENS[:40])
        with pytest.raises(MemoryError):
            session.length(0)
        session.close()
    assert not session._lane._worker.alive
    assert session.rows == ()


@pytest.mark.parametrize("chunk", [7, 40])
def test_a_prompt_that_goes_on_within_a_block_and_is_cut_short_can_be_read_again(chunk: int) -> None:
    """Its beginning is in the block that the last prompt left unfinished, whose queries count, too."""
    method = InfiniGen(channels=2, calibration_tokens=2 * SPEC.block)
    one = compose(MODEL, method, "offload-prefetch", spec=SPEC, page_blocks=2, threads=1)

    def cut(done: int) -> None:
        if done >= 21:
            raise Cut

    with one.open_cpu() as session, one.open_cpu() as calm:
        for each in (session, calm):
            filled(each, 3 * SPEC.block + SPEC.block // 2)
        with pytest.raises(Cut):
            session.prefill(0, TOKENS[60:100], chunk=chunk, progress=cut)
        counted = []
        for each in (session, calm):
            each.prefill(0, TOKENS[60:100], chunk=chunk)
            bound = each._bound
            assert isinstance(bound, BoundInfiniGen)
            assert isinstance(bound.scorer, TokenScorer)
            prompt = bound.scorer._of(0, 1).prompt
            assert prompt is not None
            counted.append(prompt.counted)
        assert counted[0] == counted[1] == 64, "queries of eight whole blocks, three of them the first prompt's"
        got, want = (each.decode({0: 5}).logits for each in (session, calm))
        assert torch.equal(got, want)


def test_closing_goes_on_where_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(*PAIRS[0])
    assert session._lane is not None
    with monkeypatch.context() as patch:
        patch.setattr(CopyLane, "close", after(0, CopyLane.close, Cut()))
        with pytest.raises(Cut):
            session.close()
    worker = session._lane._worker
    session.close()
    session.close()
    assert not worker.alive
    with pytest.raises(SpardaError, match="closed"):
        session.add()


def test_pages_that_two_cuts_lost_on_their_way_to_a_row_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(*PREFETCH) as session:
        filled(session, 20)
        before = session.used_bytes
        with monkeypatch.context() as patch:
            patch.setattr(BlockStore, "_map", after(0, BlockStore._map, Cut()))
            patch.setattr(PagePool, "release", after(0, PagePool.release, Cut()))
            with pytest.raises(Cut):
                session.prefill(0, TOKENS[:40])
        assert session.used_bytes == before
        session.prefill(0, TOKENS[:40])
