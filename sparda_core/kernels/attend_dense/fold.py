"""A bias on the logits as more head dimensions, so that any fused causal attention adds it in its one pass.

With q' = [q, 1, 1, 0 ..] and k' = [k, high, low, 0 ..], where high + low is the bias over the scale, q' . k' times the
scale is the logit with its bias. A mask of one number a (query, key) would hold the same in T * N values.
"""

from __future__ import annotations

import attrs
import torch
from torch.nn.functional import pad

#: Extra dimensions: two are used, and fused kernels want widths that are multiples of 8.
_EXTRA = 8


@attrs.frozen(eq=False)
class Folded:
    """What to give an attention that knows no bias, and its `scale`; `cut` takes the result back to `width` values."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    width: int

    def cut(self, attention: torch.Tensor) -> torch.Tensor:
        """[..., width or more] -> [..., width]."""
        return attention[..., : self.width]


def fold_bias(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> Folded:
    """query [B, Hq, T, D], keys and values [B, Hk, N, D], bias [B, Hk, N] or None: as they are without one.

    A bias is split in two numbers of the keys' dtype, which holds 16 bits of it in bfloat16 and all that matters in
    the others.
    """
    width = query.shape[-1]
    scale = float(width) ** -0.5
    if bias is None:
        return Folded(query, keys, values, scale, width)
    wide = bias / scale
    high = wide.to(keys.dtype)
    low = (wide - high).to(keys.dtype)
    ones = query.new_ones(()).expand(*query.shape[:-1], 2)
    return Folded(
        pad(torch.cat((query, ones), -1), (0, _EXTRA - 2)),
        pad(torch.cat((keys, high[..., None], low[..., None]), -1), (0, _EXTRA - 2)),
        pad(values, (0, _EXTRA)),
        scale,
        width,
    )
