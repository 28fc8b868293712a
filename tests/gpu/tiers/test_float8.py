from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.kernels.quantise.reference import dequantise_blocks, quantise_blocks
from sparda_core.runtimes.gpu.tiers import GpuTiers
from tests.gpu.tiers.test_tiers import through_table
from tests.gpu.tiers.worlds import SHAPE, SPEC, append, open_tiers, tokens_of
from tests.gpu_env import DTYPES

SIZE = SPEC.block


def rounded(kv: torch.Tensor) -> torch.Tensor:
    """[2, Hk, n, D] with its full blocks as float8 gives them back; the rest as it is."""
    full = kv.shape[2] // SIZE * SIZE
    blocks = kv[:, :, :full].unflatten(2, (-1, SIZE)).permute(1, 2, 0, 3, 4)  # type: ignore[no-untyped-call]
    again = dequantise_blocks(*quantise_blocks(blocks.flatten(0, 1)), kv.dtype)
    again = again.view(blocks.shape).permute(2, 0, 1, 3, 4).reshape(kv[:, :, :full].shape)
    return torch.cat([again, kv[:, :, full:]], 2)


def assert_row(tiers: GpuTiers, place: int, kv: torch.Tensor) -> None:
    tokens = kv.shape[3]
    for layer in range(tiers.resident, SHAPE.layers):
        want = rounded(kv[layer])
        got = torch.stack(tiers.read(place, layer, 0, tokens))
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        slots = tiers.layers[layer].slots
        assert slots is not None
        if tokens % SIZE:
            for head in range(SHAPE.kv_heads):
                slot = int(slots.where[place, head, tokens // SIZE])
                assert slot >= 0
                count = slots.held.shape[2]
                tail = slots.array[(place * SHAPE.kv_heads + head) * count + slot][:, : tokens % SIZE]
                torch.testing.assert_close(tail, want[:, head, tokens // SIZE * SIZE :], rtol=0, atol=0)


def opened(dtype: torch.dtype = torch.float32) -> GpuTiers:
    tiers = open_tiers(dtype, host_kv_bytes=1)
    tiers.add(0)
    return tiers


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("chunks", [(29,), (13, 16), (5, 2, 1, 8, 13), (8, 21), (24,)])
def test_a_row_is_the_same_however_its_tokens_come(chunks: tuple[int, ...], dtype: torch.dtype) -> None:
    tiers, kv = opened(dtype), tokens_of(sum(chunks), 1, dtype)
    at = 0
    for count in chunks:
        append(tiers, 0, kv[:, :, :, at : at + count])
        at += count
        assert_row(tiers, 0, kv[:, :, :, :at])


def test_full_blocks_lie_on_the_host_in_float8_with_their_scales() -> None:
    tiers, kv = opened(), tokens_of(29, 1)
    append(tiers, 0, kv)
    host = tiers.layers[2].host
    assert host is not None
    assert host.scales is not None
    blocks = kv[2, :, 1, SIZE : 2 * SIZE][None]
    codes, scales = quantise_blocks(blocks)
    assert torch.equal(through_table(host, 0, 24)[:, 1, SIZE : 2 * SIZE], codes[0].cpu())
    page = int(host.table[0, 1, 0])
    assert torch.equal(host.scales[page * host.page_blocks + 1], scales[0])


def test_a_fork_keeps_its_own_last_block() -> None:
    tiers, kv = opened(), tokens_of(21, 1)
    append(tiers, 0, kv)
    tiers.fork(0, 1)
    one, two = tokens_of(7, 2), tokens_of(4, 3)
    append(tiers, 1, one)
    append(tiers, 0, two)
    assert_row(tiers, 0, torch.cat([kv, two], 3))
    assert_row(tiers, 1, torch.cat([kv, one], 3))
    tiers.retire(0)
    tiers.move(1, 0)
    assert_row(tiers, 0, torch.cat([kv, one], 3))


@pytest.mark.parametrize("tokens", [28, 26, 24, 19, 16, 3, 0])
def test_a_crop_into_a_full_block_goes_on_from_what_float8_kept_of_it(tokens: int) -> None:
    tiers, kv = opened(), tokens_of(29, 1)
    append(tiers, 0, kv)
    tiers.crop(0, tokens)
    kept = kv.clone()
    for layer in range(SHAPE.layers):
        kept[layer] = rounded(kv[layer])
    for layer in range(tiers.resident, SHAPE.layers):
        got = torch.stack(tiers.read(0, layer, 0, tokens))
        torch.testing.assert_close(got, kept[layer][:, :, :tokens], rtol=0, atol=0)
    more = tokens_of(9, 5)
    append(tiers, 0, more)
    for layer in range(tiers.resident, SHAPE.layers):
        keys, _ = tiers.read(0, layer, tokens, tokens + 9)
        want = rounded(torch.cat([kept[layer][:, :, :tokens], more[layer]], 2))
        torch.testing.assert_close(keys, want[0, :, tokens:])


def test_a_failed_step_leaves_the_last_block_where_it_alone_is() -> None:
    tiers, kv = opened(), tokens_of(29, 1)
    append(tiers, 0, kv)
    tiers.refresh(0, 29, stale_from=0)
    assert_row(tiers, 0, kv)


@pytest.mark.parametrize("slots", [3, 9])
def test_other_slots_never_push_the_last_block_out(slots: int) -> None:
    tiers, kv = opened(), tokens_of(29, 1)
    append(tiers, 0, kv)
    assert tiers.host is not None
    held, used = tiers.host.slots.held[:, 0], tiers.host.slots.used[:, 0]
    for block in range(3):
        tiers.host.slots.admit(0, block)
    used.copy_(torch.where(held == 29 // SIZE, 0, 7))  # the last block is the oldest of four
    tiers.resize(attrs.evolve(tiers.plan, slots=slots, spec=SPEC.with_budget(3)))
    assert_row(tiers, 0, kv)
