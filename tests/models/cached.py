"""Decoding over a cache of K and V that anybody can check: lists of tensors, attention written out."""

from __future__ import annotations

import torch

from sparda_core.models.decoder import Decoder, Projections


def attend_by_hand(q_BHTD: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Last T queries over all cached keys, causal."""
    group, tokens, total = q_BHTD.shape[1] // k.shape[1], q_BHTD.shape[2], k.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score: torch.Tensor = q_BHTD @ k.transpose(-1, -2) / q_BHTD.shape[-1] ** 0.5
    hidden = torch.ones(tokens, total, dtype=torch.bool).triu(total - tokens + 1)
    out: torch.Tensor = score.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    return out


def decode_with_cache(decoder: Decoder, ids_BT: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    cache: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * decoder.shape.layers
    logits, start = [], 0
    for size in chunks:
        positions_BT = torch.arange(start, start + size).expand(ids_BT.shape[0], size)
        x = decoder.embed(ids_BT[:, start : start + size])
        for layer in range(decoder.shape.layers):
            p: Projections = decoder.project(layer, x, decoder.rotation(positions_BT))
            past = cache[layer]
            k, v = (p.k, p.v) if past is None else (torch.cat((past[0], p.k), 2), torch.cat((past[1], p.v), 2))
            cache[layer] = (k, v)
            x = decoder.mlp(layer, decoder.output(layer, x, attend_by_hand(p.q, k, v)))
        logits.append(decoder.head(x))
        start += size
    return torch.cat(logits, 1)
