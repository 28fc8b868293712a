from __future__ import annotations

import contextlib
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparda_core.errors import CapacityError, ConfigError, RowError
from sparda_core.kernels.compress.reference import compress
from sparda_core.kernels.tables import DeviceSlots, Paged
from sparda_core.runtimes.gpu.tiers import GpuTiers
from tests.gpu.session.host_reads import no_waiting
from tests.gpu.tiers.worlds import PLAN, SHAPE, SPEC, append, open_tiers, tokens_of
from tests.gpu_env import DEVICE, DTYPES


def through_table(pages: Paged, place: int, tokens: int) -> torch.Tensor:
    """[2, Hk, tokens, D]: a row as a kernel finds it, block by block through the page table."""
    array, table = pages.array.cpu(), pages.table.cpu()
    rows = []
    for head in range(SHAPE.kv_heads):
        blocks = []
        for block in range(SPEC.block_count(tokens)):
            page = int(table[place, head, block // pages.page_blocks])
            assert page >= 0
            blocks.append(array[page * pages.page_blocks + block % pages.page_blocks])
        rows.append(torch.cat(blocks, 1)[:, :tokens] if blocks else array.new_empty(2, 0, SHAPE.head_dim))
    return torch.stack(rows, 1)


def assert_row(tiers: GpuTiers, place: int, kv: torch.Tensor) -> None:
    """Everything that is kept for a row is what its tokens say."""
    tokens = kv.shape[3]
    assert tiers.length(place) == tokens
    for layer, tier in enumerate(tiers.layers):
        pages = tier.device or tier.host
        assert pages is not None
        torch.testing.assert_close(through_table(pages, place, tokens), kv[layer].cpu(), rtol=0, atol=0)
        keys, values = tiers.read(place, layer, 0, tokens)
        torch.testing.assert_close(torch.stack([keys, values]), kv[layer], rtol=0, atol=0)
        count = SPEC.entry_count(tokens)
        want = compress(kv[layer, 0].cpu(), window=SPEC.window, stride=SPEC.stride)
        got = tier.entries[place, :, :count].cpu()
        torch.testing.assert_close(got, want)
        for position in range(max(0, tokens - SPEC.window), tokens):
            got = tier.ring[place, :, position % SPEC.window]
            torch.testing.assert_close(got, kv[layer, 0, :, position], rtol=0, atol=0)
        if tier.slots is not None:
            assert_slots(tier.slots, place, kv[layer], tokens)


def assert_slots(slots: DeviceSlots, place: int, kv: torch.Tensor, tokens: int) -> None:
    """`where` is the inverse of `held`, what is held is right, and the partly filled last block is among it."""
    held, where = slots.held[place].cpu(), slots.where[place].cpu()
    count = held.shape[1]
    for head in range(SHAPE.kv_heads):
        found = {int(block): slot for slot, block in enumerate(held[head].tolist()) if block >= 0}
        assert len(found) == int((held[head] >= 0).sum())
        assert {block: slot for block, slot in enumerate(where[head].tolist()) if slot >= 0} == found
        if tokens % SPEC.block:
            assert tokens // SPEC.block in found
        for block, slot in found.items():
            part = kv[:, head, block * SPEC.block : (block + 1) * SPEC.block]
            got = slots.array[(place * SHAPE.kv_heads + head) * count + slot][:, : part.shape[1]]
            torch.testing.assert_close(got, part, rtol=0, atol=0)


class TiersAgreeWithTensors(RuleBasedStateMachine):
    """A plain tensor of K and V for each place judges pages, tables, slots, entries and rings."""

    resident = 1

    def __init__(self) -> None:
        super().__init__()
        self.tiers = open_tiers(resident_layers=self.resident)
        self.model: dict[int, torch.Tensor] = {}
        self.seed = 0

    def free(self) -> list[int]:
        return [place for place in range(PLAN.places) if place not in self.model]

    @precondition(lambda self: self.free())
    @rule()
    def add(self) -> None:
        place = self.free()[0]
        self.tiers.add(place)
        self.model[place] = tokens_of(0, 0)

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 40), data=st.data())
    def append(self, count: int, data: Any) -> None:
        place = data.draw(st.sampled_from(sorted(self.model)))
        self.seed += 1
        more = tokens_of(min(count, PLAN.tokens - self.model[place].shape[3]), self.seed)
        append(self.tiers, place, more)
        self.model[place] = torch.cat([self.model[place], more], 3)

    @precondition(lambda self: self.model and self.free())
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        source, copy = data.draw(st.sampled_from(sorted(self.model))), self.free()[-1]
        self.tiers.fork(source, copy)
        self.model[copy] = self.model[source]

    @precondition(lambda self: self.model and self.free())
    @rule(data=st.data())
    def move(self, data: Any) -> None:
        source, target = data.draw(st.sampled_from(sorted(self.model))), self.free()[0]
        self.tiers.move(source, target)
        self.model[target] = self.model.pop(source)

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1), data=st.data())
    def crop(self, share: float, data: Any) -> None:
        place = data.draw(st.sampled_from(sorted(self.model)))
        tokens = round(share * self.model[place].shape[3])
        self.tiers.crop(place, tokens)
        self.model[place] = self.model[place][:, :, :, :tokens]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def retire(self, data: Any) -> None:
        place = data.draw(st.sampled_from(sorted(self.model)))
        self.tiers.retire(place)
        del self.model[place]

    @invariant()
    def rows_are_what_their_tokens_say(self) -> None:
        for place, kv in self.model.items():
            assert_row(self.tiers, place, kv)

    @invariant()
    def places_without_a_row_have_no_pages_and_no_slots(self) -> None:
        for place in self.free():
            for tier in self.tiers.layers:
                pages = tier.host or tier.device
                assert pages is not None
                assert int(pages.table[place].max()) == -1
                assert tier.slots is None or int(tier.slots.held[place].max()) == -1


class ResidentTiersAgreeWithTensors(TiersAgreeWithTensors):
    resident = 3


class OffloadedTiersAgreeWithTensors(TiersAgreeWithTensors):
    resident = 0


for machine in (TiersAgreeWithTensors, ResidentTiersAgreeWithTensors, OffloadedTiersAgreeWithTensors):
    machine.TestCase.settings = settings(max_examples=8, stateful_step_count=12, deadline=None)
TestTiers = TiersAgreeWithTensors.TestCase
TestResidentTiers = ResidentTiersAgreeWithTensors.TestCase
TestOffloadedTiers = OffloadedTiersAgreeWithTensors.TestCase


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_rows_are_kept_in_every_dtype(dtype: torch.dtype) -> None:
    tiers, kv = open_tiers(dtype), tokens_of(29, 1, dtype)
    tiers.add(1)
    append(tiers, 1, kv[:, :, :, :13])
    append(tiers, 1, kv[:, :, :, 13:])
    for layer in range(SHAPE.layers):
        got = torch.stack(tiers.read(1, layer, 3, 29))
        assert torch.equal(got, kv[layer, :, :, 3:])


def test_forked_rows_share_pages_until_one_of_them_writes() -> None:
    tiers, kv = open_tiers(), tokens_of(20, 1)
    tiers.add(0)
    append(tiers, 0, kv)
    before = tiers.used_bytes
    tiers.fork(0, 2)
    assert tiers.used_bytes == before
    for layer in tiers.layers:
        pages = layer.host or layer.device
        assert pages is not None
        assert torch.equal(pages.table[0], pages.table[2])
    more = tokens_of(1, 2)
    append(tiers, 2, more)
    page = 2 * SPEC.block * 2 * SHAPE.head_dim * 4
    assert tiers.used_bytes["host"] - before["host"] == 2 * SHAPE.kv_heads * page  # the last page of each
    assert_row(tiers, 0, kv)
    assert_row(tiers, 2, torch.cat([kv, more], 3))


def test_a_row_that_was_added_or_moved_sits_out_until_the_session_says_otherwise() -> None:
    tiers = open_tiers()
    tiers.add(0)
    tiers.rows.position[0], tiers.rows.token[0], tiers.rows.seed[0] = 5, 7, 9
    tiers.move(0, 2)
    assert tiers.rows.position.tolist() == [-1, -1, 5]
    assert (int(tiers.rows.token[2]), int(tiers.rows.seed[2])) == (7, 9)
    tiers.retire(2)
    assert tiers.rows.position.tolist() == [-1, -1, -1]


def test_a_store_that_is_full_refuses_before_anything_changes() -> None:
    page = 2 * SPEC.block * 2 * SHAPE.head_dim * 4
    tiers = open_tiers(resident_layers=0, host_limit_bytes=2 * 3 * SHAPE.kv_heads * page)
    tiers.add(0)
    kv = tokens_of(20, 1)
    append(tiers, 0, kv)
    with pytest.raises(CapacityError, match="'host'"):
        tiers.reserve({0: 40})
    assert_row(tiers, 0, kv)
    tiers.add(1)
    with pytest.raises(CapacityError, match="retire or crop rows"):
        tiers.reserve({1: 1})
    tiers.crop(0, 3)
    tiers.reserve({1: 1})


def test_wrong_places_and_lengths_are_refused() -> None:
    tiers = open_tiers()
    tiers.add(0)
    with pytest.raises(ConfigError, match="must be a free one of 3; taken: \\[0\\]"):
        tiers.add(0)
    with pytest.raises(ConfigError, match="free one of 3"):
        tiers.fork(0, 3)
    with pytest.raises(RowError, match="place=1 has no row"):
        tiers.retire(1)
    with pytest.raises(ConfigError, match="must be <= 80"):
        tiers.reserve({0: 81})
    with pytest.raises(ConfigError, match="within the 0 reserved"):
        tiers.load(0, 0, tokens_of(1, 1)[0, 0], tokens_of(1, 1)[0, 1], 0)
    with pytest.raises(ConfigError, match="between 0 and its length 0"):
        tiers.crop(0, 1)


def test_what_is_taken_is_what_was_planned() -> None:
    for resident, host_width in ((1, 4), (0, 4), (3, 4), (1, 1)):
        tiers = open_tiers(resident_layers=resident, host_kv_bytes=host_width)
        planned = {**tiers.plan.device_parts(), "host": tiers.plan.host_bytes}
        for name, size in tiers.allocated().items():
            assert size == pytest.approx(planned[name], rel=0.01), name


def test_after_a_failed_step_slots_are_dropped_but_for_the_last_block() -> None:
    tiers, kv = open_tiers(), tokens_of(20, 1)
    tiers.add(1)
    append(tiers, 1, kv)
    assert tiers.host is not None
    tiers.host.slots.admit(1, 0)
    tiers.host.slots.array.fill_(float("nan"))
    tiers.refresh(1, 20, stale_from=0)
    assert_row(tiers, 1, kv)
    assert sorted(np.unique(tiers.host.slots.held[:, 1].cpu()).tolist()) == [-1, 2]


@pytest.mark.parametrize("slots", [4, 6, 9])
def test_other_slots_and_another_budget_leave_rows_as_they_are(slots: int) -> None:
    tiers, kv = open_tiers(), tokens_of(45, 1)
    tiers.add(1)
    append(tiers, 1, kv)
    tiers.resize(attrs.evolve(tiers.plan, slots=slots, spec=SPEC.with_budget(5)))
    assert_row(tiers, 1, kv)
    diff = tiers.layers[2].diff
    assert diff is not None
    assert diff.physical.shape == (3, 2, 5)
    assert tiers.layers[0].choice.blocks.shape == (3, 2, 5)
    with pytest.raises(ConfigError, match="only slots and budget"):
        tiers.resize(attrs.evolve(tiers.plan, places=2))


def test_nothing_is_read_back_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers, kv, more = open_tiers(), tokens_of(20, 1), tokens_of(5, 3)
    with no_waiting() if DEVICE.type == "cuda" else contextlib.nullcontext():
        tiers.add(0)
        append(tiers, 0, kv)
        tiers.fork(0, 1)
        append(tiers, 1, more)
        tiers.crop(0, 9)
        tiers.move(1, 2)
        tiers.retire(0)
    assert tiers.length(2) == 25
