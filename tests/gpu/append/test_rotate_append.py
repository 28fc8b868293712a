"""Rotary, entries and the store of new tokens in one launch, against the obvious way in float64."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.append import gpu
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.compress.reference import compress
from sparda_core.shapes import BlockSpec
from tests.gpu.append.launch import copies, launch_is_right, rotate_append
from tests.gpu.append.worlds import World, close, nan, positions, strided
from tests.gpu_env import DTYPES

SPEC = BlockSpec(block=16, window=8, stride=4, local=1, budget=4)
HEADS = FusedHeads(q=6, kv=2, has_next=True, has_own=True)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    window, stride = draw(st.sampled_from([(8, 4), (12, 4), (4, 4), (1, 1)]))
    spec = BlockSpec(block=16, window=window, stride=stride, local=1, budget=4)
    edges = st.sampled_from([-1, 0, max(0, window - 2), window - 1, window, window + 3, 15, 16, 31, 32, 47])
    kv = draw(st.integers(1, 3))
    return World(
        heads=FusedHeads(
            q=kv * draw(st.sampled_from([1, 3, 5])), kv=kv, has_next=draw(st.booleans()), has_own=draw(st.booleans())
        ),
        size=draw(st.sampled_from([32, 36, 64])), spec=spec, dtype=draw(st.sampled_from(DTYPES)),
        places=draw(st.lists(edges, min_size=1, max_size=3)), seed=draw(st.integers(0, 2**31)),
    )  # fmt: skip


@settings(max_examples=12)
@given(world=worlds(), where=st.sampled_from(["pages", "slots"]), host=st.booleans())
def test_one_launch_does_what_rotary_ring_entries_and_store_do(world: World, where: str, *, host: bool) -> None:
    launch_is_right(world, where, host=host)


def test_token_after_token_makes_the_entries_of_the_whole_sequence() -> None:
    keys, world = [], World(heads=FusedHeads(q=1, kv=1), size=32, spec=SPEC, dtype=torch.float32, places=[40])
    entries = nan(1, 1, SPEC.entry_count(41), 32, dtype=torch.float32)
    ring = nan(1, 1, SPEC.window, 32, dtype=torch.float32)
    for here in range(41):
        world.places = [here]
        out = world.outputs()
        rotate_append(world, world.random(1, 3 * 32), None, entries=entries, ring=ring, **out)
        assert out["key"] is not None
        keys.append(out["key"].clone())
    want = compress(torch.cat(keys).transpose(0, 1)[None].double(), window=SPEC.window, stride=SPEC.stride)
    close(entries, want)


def test_an_inactive_place_writes_zeros_and_nothing_else_whatever_lies_in_it() -> None:
    world = World(heads=HEADS, size=32, spec=SPEC, dtype=torch.float32, places=[-1, -1])
    out, entries, ring = world.outputs(), world.entries(), world.ring()
    proj = nan(2, HEADS.total * 32, dtype=torch.float32)
    for where in ("pages", "slots"):
        store = world.store(where, host=True)
        rotate_append(world, proj, store, entries=entries, ring=ring, **out)
        assert all(tensor is None or not tensor.any() for tensor in out.values())
        assert all(bool(t.isnan().all()) for t in (entries, ring, *copies(store)))


def test_a_place_without_a_slot_or_a_page_keeps_its_neighbours_and_is_not_written() -> None:
    world = World(heads=HEADS, size=32, spec=SPEC, dtype=torch.float32, places=[3, 20])
    for where in ("pages", "slots"):
        store = world.store(where, host=False)
        missing = store.tail if store.device is None else store.device.table
        assert missing is not None
        missing[0] = -1
        rotate_append(
            world, world.random(2, HEADS.total * 32), store, entries=world.entries(), ring=world.ring(),
            **world.outputs(),
        )  # fmt: skip
        assert int((~copies(store)[0].isnan()).sum()) == HEADS.kv * 2 * 32


@pytest.mark.parametrize("where", ["pages", "slots"])
def test_appending_apart_writes_the_same_as_in_the_same_launch(where: str) -> None:
    world = World(heads=FusedHeads(q=2, kv=2), size=36, spec=SPEC, dtype=torch.float16, places=[17, -1, 31])
    out, together, apart = world.outputs(), world.store(where, host=True), world.store(where, host=True)
    for mine, other in zip(_maps(apart), _maps(together), strict=True):
        mine.copy_(other)
    proj = world.random(3, 6 * 36)
    rotate_append(world, proj, together, entries=world.entries(), ring=world.ring(), **out)
    assert out["key"] is not None
    assert out["value"] is not None
    gpu.append_tokens(out["key"], out["value"], positions(world.places), apart)
    for one, other in zip(copies(together), copies(apart), strict=True):
        assert bool((~one.isnan()).any())
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def _maps(store: Store) -> list[torch.Tensor]:
    assert store.host is not None
    first = store.tail if store.device is None else store.device.table
    assert first is not None
    return [first, store.host.table]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotating_queries_alone_gives_the_queries_of_the_whole_launch(dtype: torch.dtype) -> None:
    world = World(heads=FusedHeads(q=9, kv=3), size=36, spec=SPEC, dtype=dtype, places=[5, -1, 30])
    proj, out = world.random(3, 15 * 36), world.outputs()
    rotate_append(world, proj, None, entries=world.entries(), ring=world.ring(), **out)
    query = strided(3, 9, 36, dtype=dtype)
    gpu.rotate(
        proj[:, : 9 * 36], cos=world.tables.cos, sin=world.tables.sin, position=positions(world.places), query=query
    )
    assert out["query"] is not None
    assert torch.equal(query, out["query"])


def test_what_does_not_fit_is_refused() -> None:
    world = World(heads=HEADS, size=32, spec=SPEC, dtype=torch.float32, places=[3])
    proj, out = world.random(1, HEADS.total * 32), world.outputs()
    rest = {"entries": world.entries(), "ring": world.ring()}
    with pytest.raises(ConfigError, match=r"proj has shape \[1, 447\]; want \[B=1, F=448\]"):
        rotate_append(world, proj[:, 1:], None, **rest, **out)
    with pytest.raises(ConfigError, match="holds a Forecast: give it a place to go"):
        rotate_append(world, proj, None, **rest, **(out | {"forecast_own": None}))
    with pytest.raises(ConfigError, match="its last axis must be contiguous"):
        rotate_append(world, proj.t().contiguous().t().repeat(1, 2)[:, ::2], None, **rest, **out)
    with pytest.raises(ConfigError, match="give one of the two"):
        Store()
    pages = world.pages(pinned=True)
    with pytest.raises(ConfigError, match="float8 host copy"):
        Store(device=pages, host=attrs.evolve(pages, array=pages.array.to(torch.uint8)))


def test_the_grid_has_a_program_for_every_kv_head_and_every_few_query_heads() -> None:
    assert gpu.grid(16, FusedHeads(q=32, kv=2)) == (16, 2 + 4)
    assert gpu.grid(1, FusedHeads(q=9, kv=3)) == (1, 3 + 2)
