"""LayerView: the little that a selector may see of a running model.

Torch appears in annotations only; importing this module does not load it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.plan import Phase
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    import torch


@attrs.define(kw_only=True)
class EntryView:
    """Entries (compressed post-RoPE keys) of one layer, as they lie in memory.

    buffer  [R, Hk, capacity, D]; values at or beyond a row's count are undefined
    rows    int64 [B], where each batch row lies in `buffer`
    counts  int64 [B], entries of each batch row
    """

    buffer: torch.Tensor
    rows: torch.Tensor
    counts: torch.Tensor

    def padded(self) -> torch.Tensor:
        """[B, Hk, max count, D], a copy; values beyond a row's count are undefined."""
        width = int(self.counts.max()) if self.counts.numel() else 0
        return self.buffer[self.rows, :, :width]


@attrs.define(kw_only=True)
class LayerView:
    """One selection in the making: what is known, and where the result goes.

    B rows, T queries a row (1 in decode), Hq query heads, Hk KV heads, D head dim.

    layer      the layer that will attend to the selection (target)
    source     the layer whose state is shown; `layer` - `source` is the lead
    rows       stable row ids, in batch order
    positions  int64 [B, T], absolute positions of the queries
    x          [B, T, hidden], the source layer's normed attention input
    query      [B, Hq, T, D], the target's own post-RoPE query; None unless source == layer
    forecast   [B, Hk, T, D], the post-RoPE Forecast for `layer`; None where the model has none
    entries    the target's entries; with a lead, those left by the previous token
    query_of   (layer, x, positions) -> [B, Hq, T, D]: another layer's query projection and RoPE
    keys       () -> (keys [B, Hk, N, D], int64 counts [B]): every post-RoPE key of the target known
               now, a copy; for measuring sticks and calibration only, its cost is not counted
    bias       means of the target's token biases, one for each entry, as entries of width 1; None where the model has
               no token bias
    token_bias () -> [B, Hk, N], the bias of every token that `keys` gives, None where there is none; as with `keys`, a
               copy for measuring sticks
    scores     set by a selector's `score` operation
    selection  int32 [B, Hk, T, budget], set by its last operation: ascending ids, -1 last
    """

    layer: int
    source: int
    phase: Phase
    spec: BlockSpec
    rows: tuple[int, ...]
    positions: torch.Tensor
    x: torch.Tensor
    query: torch.Tensor | None
    forecast: torch.Tensor | None
    entries: EntryView
    query_of: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
    keys: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    bias: EntryView | None = None
    token_bias: Callable[[], torch.Tensor | None] = lambda: None
    scores: torch.Tensor | None = None
    selection: torch.Tensor | None = None
    scratch: dict[str, Any] = attrs.field(factory=dict)
