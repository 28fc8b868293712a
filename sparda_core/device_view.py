"""DeviceView: what a selector may see of a decode step on a GPU, where nothing may be read by the host.

The counterpart of LayerView. Everything is a device tensor of fixed size, so that a step can be captured
once and replayed. Torch appears in annotations only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True, eq=False)
class Choice:
    """A layer's selection.

    blocks  int32 [B, Hk, W], logical ids, ascending, -1 last
    counts  int32 [B, Hk], how many
    """

    blocks: torch.Tensor
    counts: torch.Tensor


@attrs.define(kw_only=True)
class DeviceView:
    """One selection in the making, for all B places of a batch. Built once; read at every replay.

    layer     the layer that will attend to the selection (target)
    source    the layer whose state is shown
    unseen    how many of the newest tokens the target's entries do not cover yet: 0 when the layer selects for
              itself (its entries are written already), 1 with a lead
    position  int32 [B], absolute position of each place's token; -1 for a place without an active row
    x         [B, hidden], the source layer's normed attention input
    query     [B, Hq, D], the target's own post-RoPE query; None unless source == layer
    forecast  [B, Hk, D], the post-RoPE Forecast for `layer`; None where the model has none
    key       [B, Hk, D], the target's own post-RoPE key; None unless source == layer
    entries   [B, Hk, C, D], the target's entries; undefined beyond entry_count(position + 1 - unseen)
    query_of  (layer, x) -> [B, Hq, D]: another layer's query projection and RoPE at `position`
    bias      float32 [B, Hk, C], means of the target's token biases, one for each entry; None where the model has none
    scores    float32 [B, Hk, M], where a `score` operation leaves block scores; undefined beyond the current block
    choice    where the last operation leaves the selection
    """

    layer: int
    source: int
    unseen: int
    spec: BlockSpec
    position: torch.Tensor
    x: torch.Tensor
    query: torch.Tensor | None
    forecast: torch.Tensor | None
    key: torch.Tensor | None
    entries: torch.Tensor
    query_of: Callable[[int, torch.Tensor], torch.Tensor]
    scores: torch.Tensor
    choice: Choice
    bias: torch.Tensor | None = None
