"""Causal attention over everything, by torch's fused attention, in chunks of queries."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from sparda_core.errors import ConfigError
from sparda_core.kernels.arrays import group_size
from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.kernels.checks import require_shape

#: Most bytes of one attention mask. Torch widens a boolean mask to the dtype of the query.
_MASK_BYTES = 64 * 2**20


def attend_dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, offset: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention of query t, at position offset + t, over all keys up to that position.

    query         float [B, Hq, T, D]; head h belongs to KV head h // G
    keys, values  [B, Hk, N, D], same dtype and device, N = offset + T
    bias          float [B, Hk, N], added to the scaled logits of each key; None: nothing
    returns       [B, Hq, T, D], same dtype; scale 1 / sqrt(D). Works on any device.
    Queries are cut into chunks so that no mask exceeds 64 MiB; a chunk reads no key after its last query.
    Raises ConfigError on shapes that do not fit.
    """
    batch, _, count, width = query.shape
    require_shape(keys, "keys", B=batch, Hk=None, N=offset + count, D=width)
    require_shape(values, "values", B=batch, Hk=keys.shape[1], N=offset + count, D=width)
    if offset < 0 or count < 1:
        raise ConfigError(f"offset={offset} must be >= 0 and queries={count} must be >= 1")
    if bias is not None:
        require_shape(bias, "bias", B=batch, Hk=keys.shape[1], N=offset + count)
    grouped = group_size(query, keys.shape[1]) > 1
    folded = fold_bias(query, keys, values, bias)
    query, keys, values = folded.query, folded.keys, folded.values
    if offset == 0:
        return folded.cut(
            scaled_dot_product_attention(query, keys, values, is_causal=True, scale=folded.scale, enable_gqa=grouped)
        )
    chunk = max(1, _MASK_BYTES // ((offset + count) * query.element_size()))
    starts = range(0, count, chunk)
    parts = [_attend_chunk(query[:, :, t : t + chunk], keys, values, offset + t, folded.scale) for t in starts]
    return folded.cut(torch.cat(parts, dim=2))


def _attend_chunk(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, offset: int, scale: float
) -> torch.Tensor:
    stop = offset + query.shape[2]
    keys, values = keys[:, :, :stop], values[:, :, :stop]
    grouped = query.shape[1] > keys.shape[1]
    mask = None
    if query.shape[2] > 1:
        key_at = torch.arange(stop, device=query.device)
        mask = key_at <= key_at[offset:, None]
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped)
