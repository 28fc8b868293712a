"""Skewing: a rotation, per KV head, after which few dimensions carry most of the logits."""

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

    Rotation: eigenvectors of the Gram matrix of the group's mean query, which are the right singular
    vectors that InfiniGen takes (section 4.2); kept: the dimensions e with the largest sum over tokens
    and heads of |q @ A|_e, ties to the lower e. Without tokens: the first dimensions, unskewed.
    Computed in float64, each eigenvector turned so that its largest value is positive.
    """
    heads, tokens, width = queries.shape
    if tokens == 0 or channels == width:
        return torch.eye(width, channels, dtype=queries.dtype, device=queries.device).repeat(kv_heads, 1, 1)
    grouped_HGnD = queries.view(kv_heads, heads // kv_heads, tokens, width).double()
    mean_HnD = grouped_HGnD[:, :, :rotated_by].mean(1)
    _, vectors_HDD = torch.linalg.eigh(mean_HnD.transpose(-1, -2) @ mean_HnD)
    rotation_HDD = _canonical(vectors_HDD.flip(-1))
    strength_HD = (grouped_HGnD.flatten(1, 2) @ rotation_HDD).abs().sum(1)
    order_HD = strength_HD.sort(dim=-1, descending=True, stable=True).indices
    kept_HC = order_HD[:, :channels].sort(dim=-1).values
    return rotation_HDD.gather(-1, kept_HC[:, None].expand(-1, width, -1)).to(queries.dtype)


def _canonical(vectors_HDD: torch.Tensor) -> torch.Tensor:
    """Columns, each with its largest value (the first of equals) made positive: a sign is free in an eigenvector."""
    largest = vectors_HDD.abs().argmax(dim=-2, keepdim=True)
    return vectors_HDD * vectors_HDD.gather(-2, largest).sign()
