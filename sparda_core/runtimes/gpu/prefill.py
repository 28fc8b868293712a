"""Prefill on a GPU: a chunk of one row's tokens at any offset, each query to all tokens before it or to some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.bias import causal_lower_right

#: (layer, query [Hq, T, D], key [Hk, T, D], position of the first token): what a chunk made, for whoever keeps some.
Observer = Callable[[int, torch.Tensor, torch.Tensor, int], None]


#: (layer, its projections, keys and values [Hk, N, D] of the row so far, position of the chunk's first token) -> what
#: its tokens attended to, [1, Hq, T, D]. The row's memory holds the chunk by then, entries included.
Attention = Callable[[int, Any, torch.Tensor, torch.Tensor, int], torch.Tensor]


class RowMemory(Protocol):
    """Where a row's K and V lie, by place and layer."""

    def load(self, place: int, layer: int, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """Write K and V [Hk, n, D] of the tokens from `start` on, and the entries that they complete."""

    def read(self, place: int, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [Hk, stop - start, D] of some tokens, on the device."""


def attend_dense(_: int, made: Any, keys: torch.Tensor, values: torch.Tensor, __: int) -> torch.Tensor:
    """An `Attention` of each token to all up to it."""
    return attend_before(made.q, keys[None], values[None])


def prefill_chunk(
    decoder: Any, memory: RowMemory, place: int, ids: torch.Tensor, offset: int, observe: Observer,
    attend: Attention = attend_dense,
) -> torch.Tensor:  # fmt: skip
    """Logits [vocab] after `ids`.

    decoder  a Decoder, whose rotary table holds every position of the chunk
    ids      int64 [T] on the device; the first has position `offset`
    The row's earlier K and V are read back whole, layer by layer; the chunk's own are written through.
    """
    positions = torch.arange(offset, offset + ids.numel(), device=ids.device)[None]
    turn = decoder.rotation(positions)
    x = decoder.embed(ids[None])
    for layer in range(decoder.shape.layers):
        made = decoder.project(layer, x, turn)
        observe(layer, made.q[0], made.k[0], offset)
        keys, values = made.k[0], made.v[0]
        if offset:
            earlier = memory.read(place, layer, 0, offset)
            keys, values = (torch.cat(pair, dim=1) for pair in zip(earlier, (keys, values), strict=True))
        memory.load(place, layer, made.k[0], made.v[0], offset)
        x = decoder.mlp(layer, decoder.output(layer, x, attend(layer, made, keys, values, offset)))
    logits: torch.Tensor = decoder.head(x[:, -1])
    return logits[0]


def attend_before(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of the last T of N tokens to all tokens up to each: query [B, Hq, T, D], keys and values
    [B, Hk, N, D] -> [B, Hq, T, D].
    """
    tokens, known = query.shape[2], keys.shape[2]
    if tokens == known:
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    mask = causal_lower_right(tokens, known)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
