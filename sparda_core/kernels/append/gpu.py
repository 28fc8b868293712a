"""Rotary, entries, and writing the keys and values of new tokens, on a GPU.

Grid (B, Hk + Hq / QUERIES): the first Hk programs of a row take one KV head each (key, value, Forecasts, store,
ring, entry), the others rotate a few query heads each. Every head is handled as its two halves, which is how
rotary pairs them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.gpu_store import (
    append_tokens,
    save_halves,
    store_kind,
    store_pointers,
    store_token,
)
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.strides import headed, require_contiguous_rows
from sparda_core.shapes import BlockSpec

__all__ = ["append_tokens", "grid", "rotate", "rotate_append"]

#: Query heads a program; with two warps a thread's share of 128 values is one 16-byte load.
QUERIES = 8
_WARPS = 2


@triton.jit
def _load_turned(at, c, s, active, within, HALF: tl.constexpr):
    """Both halves at `at`, rotated, float32; zero in an inactive place."""
    low = tl.load(at, mask=within, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=within, other=0.0).to(tl.float32)
    return tl.where(active, low * c - high * s, 0.0), tl.where(active, high * c + low * s, 0.0)


@triton.jit
def _rotate_queries(
    line, c, s, active, first, query, t_query, d, within,
    HQ: tl.constexpr, HALF: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """A few query heads of one row; `line` and `query` are that row's."""
    h = first + tl.arange(0, QUERIES)[:, None]
    inside = (h < HQ) & within[None, :]
    low, high = _load_turned(line + h * (2 * HALF) + d[None, :], c[None, :], s[None, :], active, inside, HALF)
    save_halves(query + h.to(tl.int64) * t_query, low, high, d[None, :], inside, HALF)


@triton.jit
def _keep_key(
    here, low, high, d, within, entries, u_entries, ring, u_ring,
    HALF: tl.constexpr, WINDOW: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """The key into the ring, and the entry that it completes, if any. `entries` and `ring` are one head's."""
    turn = here % WINDOW
    save_halves(ring + turn * u_ring, low, high, d, within, HALF)
    first = here + 1 - WINDOW
    if (first >= 0) & (first % STRIDE == 0):
        kind = ring.dtype.element_ty
        w = tl.arange(0, WIDE)[:, None]
        others = (w < WINDOW) & (w != turn) & within[None, :]
        at = ring + w * u_ring + d[None, :]
        # The new key is taken from registers: what this program has just written may not be readable yet.
        sum_low = tl.sum(tl.load(at, mask=others, other=0.0).to(tl.float32), axis=0) + low.to(kind).to(tl.float32)
        sum_high = tl.sum(tl.load(at + HALF, mask=others, other=0.0).to(tl.float32), axis=0)
        sum_high += high.to(kind).to(tl.float32)
        entry = entries + (first // STRIDE).to(tl.int64) * u_entries
        save_halves(entry, sum_low / WINDOW, sum_high / WINDOW, d, within, HALF)


@triton.jit
def _rotate_append_kernel(
    proj, s_proj, cos, sin, s_table, position,
    query, s_query, t_query, following, s_following, t_following, own, s_own, t_own,
    key, s_key, t_key, value, s_value, t_value,
    entries, s_entries, t_entries, u_entries, ring, s_ring, t_ring, u_ring,
    array, where, s_where, t_where, host, host_table, s_host, t_host,
    HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, HAS_NEXT: tl.constexpr,
    HAS_OWN: tl.constexpr, QUERIES: tl.constexpr, WINDOW: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, PLACE: tl.constexpr, PAGE_BLOCKS: tl.constexpr, THROUGH: tl.constexpr,
    HOST_PAGE_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    d = tl.arange(0, WIDTH)
    within = d < HALF
    here = tl.load(position + row)
    active = here >= 0
    turned = tl.maximum(here, 0).to(tl.int64) * s_table + d
    c = tl.load(cos + turned, mask=within, other=0.0)
    s = tl.load(sin + turned + HALF, mask=within, other=0.0)  # the first half holds the same with a minus
    line = proj + row * s_proj
    wait_for_kernel_ahead(EARLY)
    if part >= HK:
        first = (part - HK) * QUERIES
        _rotate_queries(line, c, s, active, first, query + row * s_query, t_query, d, within, HQ, HALF, QUERIES)
    else:
        head = part.to(tl.int64)
        at = line + (HQ + head) * (2 * HALF) + d
        low, high = _load_turned(at, c, s, active, within, HALF)
        # Through K's own dtype, so that ring, store and `key` hold the same.
        k_low, k_high = low.to(key.dtype.element_ty), high.to(key.dtype.element_ty)
        save_halves(key + row * s_key + head * t_key, k_low, k_high, d, within, HALF)
        v = at + HK * (2 * HALF) * (1 + HAS_NEXT + HAS_OWN)
        v_low = tl.where(active, tl.load(v, mask=within, other=0.0), 0.0)
        v_high = tl.where(active, tl.load(v + HALF, mask=within, other=0.0), 0.0)
        save_halves(value + row * s_value + head * t_value, v_low, v_high, d, within, HALF)
        if HAS_NEXT:
            low, high = _load_turned(at + HK * (2 * HALF), c, s, active, within, HALF)
            save_halves(following + row * s_following + head * t_following, low, high, d, within, HALF)
        if HAS_OWN:
            low, high = _load_turned(at + HK * (2 * HALF) * (1 + HAS_NEXT), c, s, active, within, HALF)
            save_halves(own + row * s_own + head * t_own, low, high, d, within, HALF)
        store_token(
            here, row, head, k_low, k_high, v_low, v_high, d, within,
            array, where, s_where, t_where, host, host_table, s_host, t_host,
            HALF, BLOCK, PLACE, PAGE_BLOCKS, THROUGH, HOST_PAGE_BLOCKS,
        )  # fmt: skip
        if active:
            _keep_key(
                here, k_low, k_high, d, within, entries + row * s_entries + head * t_entries, u_entries,
                ring + row * s_ring + head * t_ring, u_ring, HALF, WINDOW, WIDE, STRIDE,
            )  # fmt: skip


@triton.jit
def _rotate_kernel(
    proj, s_proj, cos, sin, s_table, position, query, s_query, t_query,
    HQ: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    within = d < HALF
    here = tl.load(position + row)
    turned = tl.maximum(here, 0).to(tl.int64) * s_table + d
    c = tl.load(cos + turned, mask=within, other=0.0)
    s = tl.load(sin + turned + HALF, mask=within, other=0.0)
    wait_for_kernel_ahead(EARLY)
    first = tl.program_id(1) * QUERIES
    line, out = proj + row * s_proj, query + row * s_query
    _rotate_queries(line, c, s, here >= 0, first, out, t_query, d, within, HQ, HALF, QUERIES)


def grid(batch: int, heads: FusedHeads) -> tuple[int, int]:
    """Programs of one `rotate_append`."""
    return batch, heads.kv + triton.cdiv(heads.q, QUERIES)


def rotate_append(
    proj: torch.Tensor,
    *,
    heads: FusedHeads,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    query: torch.Tensor,
    forecast_next: torch.Tensor | None,
    forecast_own: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    entries: torch.Tensor,
    ring: torch.Tensor,
    spec: BlockSpec,
    store: Store | None,
    early: int = AT_END,
) -> None:
    """Rotate a layer's fused product, keep the key and its entry, and write K and V to `store`. One launch.

    proj           [B, F], F = heads.total * D; rows ordered as FusedHeads says
    cos, sin       float32 [tokens, D], RotaryTable's: the sine's first half is negated
    position       int32 [B], below `tokens`; -1: outputs are zero, nothing else is written
    query          out, [B, Hq, D]
    forecast_next, forecast_own   out, [B, Hk, D]; not touched where `heads` has none
    key, value     out, [B, Hk, D]
    entries        [B, Hk, C, D]; entry c is written by the token that completes its window, from the ring
    ring           [B, Hk, window, D], key of position p at p % window
    store          None leaves K and V to `append_tokens`
    early          see `kernels.early`; position and tables must not be the previous kernel's doing
    Angles, products and means are float32, rounded once to the dtype of what they are written to; a key goes to
    ring and store as `key` holds it. Raises ConfigError on shapes that do not fit. See `append.reference`.
    """
    batch, size = proj.shape[0], cos.shape[1]
    _check_outputs(proj, heads, size, query=query, key=key, value=value, following=forecast_next, own=forecast_own)
    require_shape(sin, "sin", tokens=cos.shape[0], D=size)
    require_shape(position, "position", B=batch)
    require_shape(entries, "entries", B=batch, Hk=heads.kv, C=None, D=size)
    require_shape(ring, "ring", B=batch, Hk=heads.kv, window=spec.window, D=size)
    require_device(proj=proj, cos=cos, position=position, query=query, key=key, value=value, entries=entries, ring=ring)
    require_contiguous_rows(proj=proj, cos=cos, sin=sin, position=position, query=query, key=key, value=value)
    require_contiguous_rows(forecast_next=forecast_next, forecast_own=forecast_own, entries=entries, ring=ring)
    _rotate_append_kernel[grid(batch, heads)](
        proj, proj.stride(0), cos, sin, cos.stride(0), position,
        *headed(query), *headed(forecast_next), *headed(forecast_own), *headed(key), *headed(value),
        entries, *entries.stride()[:3], ring, *ring.stride()[:3],
        *store_pointers(store, batch, heads.kv, size, spec.block),
        HQ=heads.q, HK=heads.kv, HALF=size // 2, WIDTH=padded(size // 2), HAS_NEXT=int(heads.has_next),
        HAS_OWN=int(heads.has_own), QUERIES=QUERIES, WINDOW=spec.window, WIDE=padded(spec.window), STRIDE=spec.stride,
        BLOCK=spec.block, **store_kind(store), num_warps=_WARPS, **launch_early(early),
    )  # fmt: skip


def rotate(
    proj: torch.Tensor, *, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor, query: torch.Tensor,
    early: int = AT_END,
) -> None:  # fmt: skip
    """Rotate queries alone: proj [B, Hq * D] -> query [B, Hq, D]; the rest as in `rotate_append`. One launch."""
    batch, heads, size = query.shape
    require_shape(proj, "proj", B=batch, F=heads * size)
    require_shape(cos, "cos", tokens=None, D=size)
    require_shape(sin, "sin", tokens=cos.shape[0], D=size)
    require_shape(position, "position", B=batch)
    require_device(proj=proj, cos=cos, sin=sin, position=position, query=query)
    require_contiguous_rows(proj=proj, cos=cos, sin=sin, position=position, query=query)
    _rotate_kernel[(batch, triton.cdiv(heads, QUERIES))](
        proj, proj.stride(0), cos, sin, cos.stride(0), position, *headed(query),
        HQ=heads, HALF=size // 2, WIDTH=padded(size // 2), QUERIES=QUERIES, num_warps=_WARPS, **launch_early(early),
    )  # fmt: skip


def _check_outputs(
    proj: torch.Tensor, heads: FusedHeads, size: int, *, query: torch.Tensor, **others: torch.Tensor | None
) -> None:
    batch = proj.shape[0]
    require_shape(proj, "proj", B=batch, F=heads.total * size)
    require_shape(query, "query", B=batch, Hq=heads.q, D=size)
    for name, tensor in others.items():
        if tensor is not None:
            require_shape(tensor, name, B=batch, Hk=heads.kv, D=size)
    if (heads.has_next and others["following"] is None) or (heads.has_own and others["own"] is None):
        raise ConfigError(f"{heads} holds a Forecast: give it a place to go")
