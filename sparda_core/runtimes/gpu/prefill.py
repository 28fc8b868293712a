"""Prefill on a GPU: a chunk of one row's tokens at any offset, each query to all tokens before it or to some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.bias import causal_lower_right

from sparda_core.kernels.attend_dense.fold import fold_bias

#: (layer, query [Hq, T, D], key [Hk, T, D], position of the first token): what a chunk made, for whoever keeps some.
Observer = Callable[[int, torch.Tensor, torch.Tensor, int], None]


#: (layer, its projections, keys and values [Hk, N, D] of the row so far, their biases [Hk, N] or None, position of the
#: chunk's first token) -> what its tokens attended to, [1, Hq, T, D]. The row's memory holds the chunk by then,
#: entries included.
Attention = Callable[[int, Any, torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]


class RowMemory(Protocol):
    """Where a row's K and V lie, by place and layer."""

    def load(
        self, place: int, layer: int, keys: torch.Tensor, values: torch.Tensor, start: int,
        bias: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write K and V [Hk, n, D] of the tokens from `start` on, the entries that they complete, and their biases."""

    def read(self, place: int, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [Hk, stop - start, D] of some tokens, on the device."""

    def read_bias(self, place: int, layer: int, stop: int) -> torch.Tensor | None:
        """Biases [Hk, stop] of a row's first tokens; None where the model has none."""


def attend_dense(
    _: int, made: Any, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, __: int
) -> torch.Tensor:
    """An `Attention` of each token to all up to it."""
    return attend_before(made.q, keys[None], values[None], None if bias is None else bias[None])


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
        memory.load(place, layer, made.k[0], made.v[0], offset, None if made.bias is None else made.bias[0])
        bias = memory.read_bias(place, layer, offset + ids.numel())
        x = decoder.mlp(layer, decoder.output(layer, x, attend(layer, made, keys, values, bias, offset)))
    logits: torch.Tensor = decoder.head(x[:, -1])
    return logits[0]


def attend_before(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of the last T of N tokens to all tokens up to each: query [B, Hq, T, D], keys and values
    [B, Hk, N, D] -> [B, Hq, T, D]. A bias [B, Hk, N] is added to the scaled logits of its tokens.
    """
    tokens, known = query.shape[2], keys.shape[2]
    folded = fold_bias(query, keys, values, bias)
    given: dict[str, Any] = {"is_causal": True} if tokens == known else {"attn_mask": causal_lower_right(tokens, known)}
    return folded.cut(
        F.scaled_dot_product_attention(
            folded.query, folded.keys, folded.values, scale=folded.scale, enable_gqa=True, **given
        )
    )
