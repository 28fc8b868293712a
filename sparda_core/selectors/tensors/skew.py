"""Skewing: a rotation, per KV head, after which few dimensions carry most of the logits.

The right singular vectors of the group's mean query, as InfiniGen takes them (section 4.2); kept are the dimensions in
which queries are strongest. Everything is computed in float64.
"""

from __future__ import annotations

import torch


def partial_projection(
    queries: torch.Tensor, *, kv_heads: int, channels: int, rotated_by: int | None = None
) -> torch.Tensor:
    """The columns of the skewing rotation that keep the `channels` strongest dimensions.

    queries  [Hq, n, D], post-RoPE, one row's calibration tokens; Hq is a multiple of kv_heads
    rotated_by  how many of these tokens, from the first on, the rotation is made from; None: all
    returns  [Hk, D, channels] of the same dtype: orthonormal columns, in falling order of the
             eigenvalue; (q @ p) . (k @ p) approximates q . k, and equals it for channels = D

    Without tokens: the first dimensions, unskewed.
    """
    _, tokens, width = queries.shape
    if tokens == 0 or channels == width:
        return first_dimensions(queries, kv_heads=kv_heads, channels=channels)
    rotation_HDD = rotation_of(queries[:, :rotated_by], kv_heads=kv_heads)
    return strongest(rotation_HDD, strength_of(queries, rotation_HDD), channels=channels).to(queries.dtype)


def first_dimensions(like: torch.Tensor, *, kv_heads: int, channels: int) -> torch.Tensor:
    """[Hk, D, channels], the first dimensions as they are; `like` [..., D] gives width, dtype and device."""
    return torch.eye(like.shape[-1], channels, dtype=like.dtype, device=like.device).repeat(kv_heads, 1, 1)


def rotation_of(queries: torch.Tensor, *, kv_heads: int) -> torch.Tensor:
    """[Hk, D, D] float64 from queries [Hq, n, D], n >= 1: eigenvectors of the Gram matrix of the group's mean query.

    Columns in falling order of the eigenvalue, each turned so that its largest value is positive.
    """
    heads, tokens, width = queries.shape
    mean_HnD = queries.view(kv_heads, heads // kv_heads, tokens, width).double().mean(1)
    _, vectors_HDD = torch.linalg.eigh(mean_HnD.transpose(-1, -2) @ mean_HnD)
    return _canonical(vectors_HDD.flip(-1))


def strength_of(queries: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """How strong queries [..., Hq, n, D] are in every rotated dimension: the sum of |q @ rotation| over the n tokens
    and a group's heads, [..., Hk, D] float64.
    """
    *batch, heads, tokens, width = queries.shape
    grouped = queries.reshape(*batch, rotation.shape[0], heads // rotation.shape[0] * tokens, width)
    return (grouped.double() @ rotation).abs_().sum(-2)


def strongest(rotation: torch.Tensor, strength: torch.Tensor, *, channels: int) -> torch.Tensor:
    """The columns of rotation [Hk, D, D] of largest strength [Hk, D], ties to the lower one: [Hk, D, channels]."""
    order_HD = strength.sort(dim=-1, descending=True, stable=True).indices
    kept_HC = order_HD[:, :channels].sort(dim=-1).values
    return rotation.gather(-1, kept_HC[:, None].expand(-1, rotation.shape[1], -1))


def _canonical(vectors_HDD: torch.Tensor) -> torch.Tensor:
    """Columns, each with its largest value (the first of equals) made positive: a sign is free in an eigenvector."""
    largest = vectors_HDD.abs().argmax(dim=-2, keepdim=True)
    return vectors_HDD * vectors_HDD.gather(-2, largest).sign()
