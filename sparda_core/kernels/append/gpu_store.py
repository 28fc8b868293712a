"""Writing K and V of one token a row to its block, on a GPU: the part that appending kernels share."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.store import Store
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.strides import headed, require_contiguous_rows
from sparda_core.kernels.tables import Paged

# How a kernel finds a token's block on the device (PLACE): not at all, by a page table, by a slot.
_NOWHERE, _PAGES, _SLOTS = 0, 1, 2


@triton.jit
def save_halves(base, low, high, d, within, HALF: tl.constexpr):
    """A head's two halves to the D values at `base`."""
    kind = base.dtype.element_ty
    tl.store(base + d, low.to(kind), mask=within)
    tl.store(base + HALF + d, high.to(kind), mask=within)


@triton.jit
def _page_block(table, at, block, active, PAGE_BLOCKS: tl.constexpr):
    """Where a row's logical block lies, int64; -1 where it has no page."""
    page = tl.load(table + at + block // PAGE_BLOCKS, mask=active, other=-1).to(tl.int64)
    return tl.where(page >= 0, page * PAGE_BLOCKS + block % PAGE_BLOCKS, -1)


@triton.jit
def _put(array, block, offset, k_low, k_high, v_low, v_high, d, within, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Key and value of one token into a block, unless that is -1."""
    there = within & (block >= 0)
    base = array + tl.maximum(block, 0) * (4 * BLOCK * HALF) + offset * (2 * HALF)
    save_halves(base, k_low, k_high, d, there, HALF)
    save_halves(base + 2 * BLOCK * HALF, v_low, v_high, d, there, HALF)


@triton.jit
def store_token(
    here, row, head, k_low, k_high, v_low, v_high, d, within,
    array, where, s_where, t_where, host, host_table, s_host, t_host,
    HALF: tl.constexpr, BLOCK: tl.constexpr, PLACE: tl.constexpr, PAGE_BLOCKS: tl.constexpr,
    THROUGH: tl.constexpr, HOST_PAGE_BLOCKS: tl.constexpr,
):  # fmt: skip
    """The token at `here` (-1: none) of one row and KV head to its block on the device, and through to the host."""
    active = here >= 0
    logical = here // BLOCK
    offset = here % BLOCK
    if PLACE == 1:
        block = _page_block(where, row * s_where + head * t_where, logical, active, PAGE_BLOCKS)
        _put(array, block, offset, k_low, k_high, v_low, v_high, d, within, HALF, BLOCK)
    if PLACE == 2:
        slot = tl.load(where + row * s_where + head * t_where, mask=active, other=-1).to(tl.int64)
        _put(array, slot, offset, k_low, k_high, v_low, v_high, d, within, HALF, BLOCK)
    if THROUGH:
        page = _page_block(host_table, row * s_host + head * t_host, logical, active, HOST_PAGE_BLOCKS)
        _put(host, page, offset, k_low, k_high, v_low, v_high, d, within, HALF, BLOCK)


@triton.jit
def _append_kernel(
    key, s_key, t_key, value, s_value, t_value, position,
    array, where, s_where, t_where, host, host_table, s_host, t_host,
    HALF: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PLACE: tl.constexpr, PAGE_BLOCKS: tl.constexpr,
    THROUGH: tl.constexpr, HOST_PAGE_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d = tl.arange(0, WIDTH)
    within = d < HALF
    k = key + row * s_key + head * t_key + d
    v = value + row * s_value + head * t_value + d
    here = tl.load(position + row)
    wait_for_kernel_ahead(EARLY)
    store_token(
        here, row, head, tl.load(k, mask=within), tl.load(k + HALF, mask=within),
        tl.load(v, mask=within), tl.load(v + HALF, mask=within), d, within,
        array, where, s_where, t_where, host, host_table, s_host, t_host,
        HALF, BLOCK, PLACE, PAGE_BLOCKS, THROUGH, HOST_PAGE_BLOCKS,
    )  # fmt: skip


def append_tokens(
    key: torch.Tensor, value: torch.Tensor, position: torch.Tensor, store: Store, *, early: int = AT_END
) -> None:
    """Write K and V [B, Hk, D] of one token a place (position int32 [B], -1 writes nothing) to `store`. One launch.

    early  see `kernels.early`
    """
    batch, heads, size = key.shape
    require_shape(value, "value", B=batch, Hk=heads, D=size)
    require_shape(position, "position", B=batch)
    require_device(key=key, value=value, position=position)
    require_contiguous_rows(key=key, value=value, position=position)
    block = _block_of(store)
    _append_kernel[(batch, heads)](
        *headed(key), *headed(value), position, *store_pointers(store, batch, heads, size, block),
        HALF=size // 2, WIDTH=padded(size // 2), BLOCK=block, **store_kind(store), num_warps=1,
        **launch_early(early),
    )  # fmt: skip


def store_kind(store: Store | None) -> dict[str, int]:
    """The compile-time half of a store."""
    device, host = (store.device, store.host) if store is not None else (None, None)
    return {
        "PLACE": _NOWHERE if store is None else _PAGES if device is not None else _SLOTS,
        "PAGE_BLOCKS": device.page_blocks if device is not None else 1,
        "THROUGH": int(host is not None),
        "HOST_PAGE_BLOCKS": host.page_blocks if host is not None else 1,
    }


def store_pointers(store: Store | None, batch: int, heads: int, size: int, block: int) -> tuple[Any, ...]:
    """The rest of it: array, table or tail, its strides; host array, its table and strides."""
    if store is None:
        return (None, None, 0, 0, None, None, 0, 0)
    device: tuple[Any, ...]
    if store.device is not None:
        device = _pages(store.device, "device", batch, heads, size, block)
    else:
        assert store.slots is not None
        assert store.tail is not None
        _check_blocks(store.slots, "slots", size, block)
        require_shape(store.tail, "tail", B=batch, Hk=heads)
        device = (store.slots, store.tail, *store.tail.stride())
    host = (None, None, 0, 0) if store.host is None else _pages(store.host, "host", batch, heads, size, block)
    return (*device, *host)


def _block_of(store: Store) -> int:
    array = store.device.array if store.device is not None else store.slots
    assert array is not None
    return array.shape[2]


def _pages(pages: Paged, name: str, batch: int, heads: int, size: int, block: int) -> tuple[Any, ...]:
    _check_blocks(pages.array, f"{name} pages", size, block)
    require_shape(pages.table, f"{name} table", B=batch, Hk=heads, P=None)
    require_contiguous_rows(table=pages.table)
    return pages.array, pages.table, *pages.table.stride()[:2]


def _check_blocks(array: torch.Tensor, name: str, size: int, block: int) -> None:
    require_shape(array, name, n=None, KV=2, block=block, D=size)
    if not array.is_contiguous():
        raise ConfigError(f"{name} must be contiguous: blocks are found by their index alone")
