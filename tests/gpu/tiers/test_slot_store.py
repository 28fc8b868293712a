from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.runtimes.gpu.sizes import StoreSizes
from sparda_core.runtimes.gpu.slot_store import SlotStore
from sparda_core.runtimes.slot_pool import SlotPool
from tests.gpu.tiers.worlds import PLAN, SPEC
from tests.gpu_env import DEVICE

LAYERS, HEADS, PLACES, BLOCKS = 2, PLAN.shape.kv_heads, 2, SPEC.block_count(PLAN.tokens)
SIZES = attrs.evolve(StoreSizes.of(PLAN, LAYERS, torch.float32, DEVICE), places=PLACES)


class Both:
    """A SlotStore, and a CPU pool for each of its layers; every block's content names it."""

    def __init__(self, slots: int) -> None:
        self.store = SlotStore(attrs.evolve(SIZES, slots=slots))
        self.store.array.fill_(float("nan"))
        self.pools = [
            SlotPool(kv_heads=HEADS, slots=slots, block=SPEC.block, head_dim=PLAN.shape.head_dim, policy="lru")
            for _ in range(LAYERS)
        ]
        for pool in self.pools:
            for place in range(PLACES):
                pool.add(place)

    def select(self, layer: int, place: int, blocks: np.ndarray[Any, Any], tick: int) -> None:
        """What a diff and a copy do in a step, by the CPU's rules; its tables are then the device's too."""
        pool = self.pools[layer]
        pool.diff((place,), blocks, np.array([-1]), tick)
        self.store.held[layer, place] = torch.from_numpy(pool.resident(place)).int().to(DEVICE)
        self.store.used[layer, place] = torch.from_numpy(pool._tables.used[place]).int().to(DEVICE)
        inverse = torch.full((HEADS, BLOCKS), -1, dtype=torch.int32)
        for head, slot in np.argwhere(pool.resident(place) >= 0).tolist():
            inverse[head, pool.resident(place)[head, slot]] = slot
            content = named(layer, place, head, int(pool.resident(place)[head, slot]))
            self.store.array[layer, (place * HEADS + head) * self.store.slots + slot] = content
        self.store.where[layer, place] = inverse.to(DEVICE)

    def admit(self, place: int, block: int) -> None:
        slots, had = self.store.admit(place, block)
        for layer, pool in enumerate(self.pools):
            diff = pool.admit(place, block, tick=0)
            assert slots[layer].tolist() == diff.physical[0, :, 0].tolist()
            assert had[layer].tolist() == (diff.misses[0] == 0).tolist()
        fresh = [named(layer, place, head, block) for layer in range(LAYERS) for head in range(HEADS)]
        blocks = torch.stack([torch.full((2, SPEC.block, PLAN.shape.head_dim), one) for one in fresh])
        self.store.write_blocks(slice(None), slots, blocks.to(DEVICE))

    def check(self) -> None:
        for layer, pool in enumerate(self.pools):
            for place in range(PLACES):
                held, where = self.store.held[layer, place].cpu().numpy(), self.store.where[layer, place].cpu().numpy()
                np.testing.assert_array_equal(held, pool.resident(place))
                full = held >= 0
                np.testing.assert_array_equal(
                    self.store.used[layer, place].cpu().numpy()[full], pool._tables.used[place][full]
                )
                assert (where >= 0).sum() == full.sum()
                for head, slot in np.argwhere(full).tolist():
                    assert where[head, held[head, slot]] == slot
                    block = self.store.array[layer, (place * HEADS + head) * self.store.slots + slot]
                    assert (block == named(layer, place, head, held[head, slot])).all()


def named(layer: int, place: int, head: int, block: int) -> float:
    return float(1000 * layer + 100 * place + 50 * head + block)


def test_slots_between_steps_are_those_of_the_cpu_pool() -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def agree(data: Any) -> None:
        both = Both(slots=6)
        for tick in range(1, 9):
            what = data.draw(st.sampled_from(["select", "select", "admit", "invalidate", "resize"]))
            place = data.draw(st.integers(0, PLACES - 1))
            if what == "select":
                some = st.lists(st.integers(0, BLOCKS - 1), min_size=4, max_size=4, unique=True).map(sorted)
                chosen = np.array([[data.draw(some) for _ in range(HEADS)]], np.int32)
                both.select(data.draw(st.integers(0, LAYERS - 1)), place, chosen, tick)
            elif what == "admit":
                both.admit(place, data.draw(st.integers(0, BLOCKS - 1)))
            elif what == "invalidate":
                start = data.draw(st.integers(0, BLOCKS))
                both.store.invalidate(place, start)
                for pool in both.pools:
                    pool.invalidate(place, start)
            else:
                slots = data.draw(st.integers(4, 9))
                both.store = both.store.resized(slots, SPEC.budget)
                for pool in both.pools:
                    pool.resize(slots)
            both.check()

    agree()


@pytest.mark.parametrize("keep", [2, 4, 7])
def test_one_block_can_be_kept_when_all_from_some_block_on_are_dropped(keep: int) -> None:
    both = Both(slots=6)
    both.select(0, 1, np.array([[[1, 2, 4, 7], [0, 4, 5, 7]]], np.int32), 1)
    before = both.store.held[0, 1].tolist()
    both.store.invalidate(1, 3, keep=keep)
    assert both.store.held[0, 1].tolist() == [[b if b < 3 or b == keep else -1 for b in head] for head in before]
    where = both.store.where[0, 1]
    assert (where[:, keep] >= 0).tolist() == [keep in head for head in before]
    dropped = [block for block in range(3, BLOCKS) if block != keep]
    assert int(where[:, dropped].max()) == -1


def test_a_copy_has_the_same_blocks_in_the_same_slots_and_emptying_leaves_others_alone() -> None:
    both = Both(slots=6)
    both.select(1, 0, np.array([[[1, 2, 4, 7], [0, 4, 5, 7]]], np.int32), 3)
    both.store.copy(0, 1)
    for table in (both.store.held, both.store.used, both.store.where):
        assert torch.equal(table[:, 0], table[:, 1])
    by_place = both.store.array.view(LAYERS, PLACES, -1)
    assert torch.equal(by_place[:, 0].nan_to_num(), by_place[:, 1].nan_to_num())
    both.store.empty(0)
    assert int(both.store.held[:, 0].max()) == int(both.store.where[:, 0].max()) == -1
    assert int(both.store.held[:, 1].max()) == 7


def test_the_lists_of_a_layer_are_views_of_one_allocation() -> None:
    store = SlotStore(SIZES)
    for layer in range(LAYERS):
        diff = store.diff(layer)
        diff.count.fill_(layer + 1)
        diff.source.fill_(layer)
        assert diff.source.shape == diff.target.shape == (PLACES * HEADS * SPEC.budget,)
    assert store.counts.tolist() == [1, 2]
    assert int(store.diff(0).source.max()) == 0
