"""Tensor half of `oracle`."""

from __future__ import annotations

import torch

from sparda_core.errors import PlanError
from sparda_core.layer_view import LayerView
from sparda_core.selectors.own_query import own_query
from sparda_core.selectors.scored import ScoredSelector

#: Logits held at once, in values: 2**24 is 64 MiB in float32.
_MAX_LOGITS = 2**24


class BoundOracle(ScoredSelector):
    """Scores blocks with the attention they truly receive."""

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M], softmax over every token at or before the query, summed within blocks and over the group.

        A score lies in [0, G]; those of one query sum to G. Raises PlanError where view.keys() lacks
        the query's own token: without it every head's share would be off by another factor.
        """
        query_BHTD = own_query(view)
        keys_BHND, counts_B = view.keys()
        behind = view.positions.max(1).values >= counts_B.to(view.positions.device)
        if bool(behind.any()):
            row = int(behind.nonzero()[0])
            raise PlanError(
                f"selector 'oracle' needs every key up to position {int(view.positions[row].max())} of row "
                f"{view.rows[row]}, and view.keys() gave {int(counts_B[row])}: append keys before it scores"
            )
        bias = view.token_bias()
        batch, heads, queries, _ = query_BHTD.shape
        rows = max(1, _MAX_LOGITS // max(1, batch * heads * keys_BHND.shape[2]))
        parts = [
            _block_mass(
                query_BHTD[:, :, t : t + rows], keys_BHND, view.positions[:, t : t + rows], view.spec.block, bias
            )
            for t in range(0, queries, rows)
        ]
        return torch.cat(parts, dim=2)


def _block_mass(
    query: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, block: int, bias: torch.Tensor | None
) -> torch.Tensor:
    """query [B, Hq, t, D], keys [B, Hk, N, D], positions [B, t], bias [B, Hk, N] -> [B, Hk, t, ceil(N / block)]."""
    batch, _, queries, width = query.shape
    kv_heads, tokens = keys.shape[1:3]
    grouped = query.reshape(batch, kv_heads, -1, width)
    logits = torch.matmul(grouped, keys.to(query.dtype).mT).view(batch, kv_heads, -1, queries, tokens)
    hidden = torch.arange(tokens, device=query.device) > positions[..., None]
    logits = logits * float(width) ** -0.5
    if bias is not None:
        logits = logits + bias[:, :, None, None].to(logits)
    logits = logits.masked_fill(hidden[:, None, None], float("-inf"))
    # an inactive row sees nothing: its softmax is 0/0, and its mass is none
    share = torch.softmax(logits, dim=-1).masked_fill(hidden[:, None, None], 0.0).sum(2)
    padded = torch.nn.functional.pad(share, (0, -tokens % block))
    return padded.view(batch, kv_heads, queries, -1, block).sum(-1)
