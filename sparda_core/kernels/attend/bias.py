"""Where attention over listed blocks finds the biases of their tokens."""

from __future__ import annotations

import attrs
import torch


@attrs.frozen(kw_only=True, eq=False)
class ListedBias:
    """Biases lie by logical token, not with their blocks, so attention must know which block a place holds.

    values  float [R, Hk, N], bias of each token of a row; undefined beyond its length
    rows    int64 [B], where each batch row lies in `values`
    blocks  int32 [B, Hk, T, W], logical ids of the listed blocks; looked at where the list has a block
    """

    values: torch.Tensor
    rows: torch.Tensor
    blocks: torch.Tensor
