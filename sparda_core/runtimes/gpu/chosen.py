"""Prefill by the selector's choice on a GPU: every query of a chunk attends to blocks of its own.

Scores are the selector's CPU half's, whose tensor operations run where the tensors lie; the choice and attention are
the kernels of a decode step, with the queries of a chunk in the places of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import AttendScratch, attend_pages, attend_scratch
from sparda_core.kernels.tables import Paged
from sparda_core.layer_view import EntryView, LayerView
from sparda_core.plan import Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import BlockSpec

#: Scores held at once, in values of one KV head: 8 MiB in float32, and a few such arrays are alive together. At 128K
#: tokens that is 256 queries.
MOST_SCORES = 2**21

QueryOf = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class ChosenAttention:
    """Attention of one row's prompt, chunk after chunk. Called as `prefill.Attention`."""

    def __init__(
        self, *, bound: BoundSelector, selector: Selector, spec: BlockSpec, row: int, query_of: QueryOf,
        entries: Callable[[int], torch.Tensor], means: Callable[[int], torch.Tensor | None],
        forecast_lead: int | None,
    ) -> None:  # fmt: skip
        """How a row's prompt is chosen from.

        entries        layer -> its compressed keys [Hk, C, D], those that a chunk's tokens complete included
        means          layer -> those of its token biases [Hk, C], None where the model has none
        forecast_lead  layers between making a Forecast and choosing by it; None for a model that makes none
        """
        self._bound, self._selector, self._spec, self._row = bound, selector, spec, row
        self._query_of, self._entries, self._means, self._lead = query_of, entries, means, forecast_lead
        self._forecasts: dict[int, torch.Tensor | None] = {}
        self._scratch: AttendScratch | None = None

    def __call__(
        self, layer: int, made: Any, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, offset: int
    ) -> torch.Tensor:  # fmt: skip
        """[1, Hq, T, D]: attention of the chunk's tokens, the last T of the N in keys and values [Hk, N, D] and
        biases [Hk, N].
        """
        if made.forecast_next is not None:
            assert self._lead is not None, "a Forecast without a lead"
            self._forecasts[layer + self._lead] = made.forecast_next
        if made.forecast_own is not None:
            self._forecasts[layer] = made.forecast_own
        paged, tokens = in_blocks(keys, values, self._spec.block), made.q.shape[2]
        piece = max(1, MOST_SCORES // max(1, self._spec.entry_count(keys.shape[1])))
        out = torch.empty(tokens, made.q.shape[1], keys.shape[2], dtype=made.q.dtype, device=keys.device)
        for start in range(0, tokens, piece):
            part = slice(start, min(start + piece, tokens))
            positions = torch.arange(offset + part.start, offset + part.stop, device=keys.device)[None]
            view = self._view(layer, made, part, positions, (keys, bias))
            for kind in self._selector.operations(layer, Phase.PREFILL, 0):
                self._bound.run(kind, view)
            assert view.selection is not None, f"selector left layer {layer} without a selection"
            query, chosen = made.q[0, :, part].transpose(0, 1), view.selection[0]
            self._attend(query, paged, chosen, positions[0], out[part], bias)
        return out.transpose(0, 1)[None]

    def _view(
        self, layer: int, made: Any, part: slice, positions: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor | None],
    ) -> LayerView:  # fmt: skip
        keys, bias = kept
        forecast, known = self._forecasts.get(layer), keys.shape[1]
        means = self._means(layer)

        def entries(held: torch.Tensor) -> EntryView:
            return EntryView(
                buffer=held[None], rows=torch.zeros(1, dtype=torch.int64, device=held.device),
                counts=torch.full((1,), self._spec.entry_count(known), dtype=torch.int64, device=held.device),
            )  # fmt: skip

        return LayerView(
            layer=layer, source=layer, phase=Phase.PREFILL, spec=self._spec, rows=(self._row,), positions=positions,
            x=made.x_norm[:, part], query=made.q[:, :, part],
            forecast=None if forecast is None else forecast[:, :, part],
            entries=entries(self._entries(layer)), query_of=self._query_of,
            keys=lambda: (keys[None], torch.tensor([known])),
            bias=None if means is None else entries(means[..., None]),
            token_bias=lambda: None if bias is None else bias[None],
        )  # fmt: skip

    def _attend(
        self, query: torch.Tensor, paged: Paged, chosen: torch.Tensor, positions: torch.Tensor, out: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """query [T, Hq, D], chosen int32 [Hk, T, W], positions [T], bias [Hk, N]; out [T, Hq, D] is written."""
        places, q_heads, width = query.shape
        blocks = chosen.to(torch.int32).transpose(0, 1)
        if self._scratch is None or self._scratch.arrived.numel() < places * chosen.shape[0]:
            self._scratch = attend_scratch(
                places=places, q_heads=q_heads, kv_heads=chosen.shape[0], head_dim=width, blocks=chosen.shape[2],
                block=self._spec.block, dtype=query.dtype, device=query.device,
            )  # fmt: skip
        shared = Paged(array=paged.array, table=paged.table.expand(places, -1, -1), page_blocks=paged.page_blocks)
        choice = Choice(blocks=blocks, counts=(blocks >= 0).sum(-1, dtype=torch.int32))
        biases = None if bias is None else bias[None].expand(places, -1, -1)
        attend_pages(query, shared, choice, positions.to(torch.int32), self._spec, out, self._scratch, bias=biases)


def in_blocks(keys: torch.Tensor, values: torch.Tensor, block: int) -> Paged:
    """K and V [Hk, N, D] as one row's blocks, a page each; what lies behind the last token is undefined."""
    heads, tokens, width = keys.shape
    full, count = tokens // block, -(-tokens // block)
    array = keys.new_empty(heads, count, 2, block, width)
    for side, part in enumerate((keys, values)):
        array[:, :full, side] = part[:, : full * block].reshape(heads, full, block, width)
        if full < count:
            array[:, full, side, : tokens - full * block] = part[:, full * block :]
    table = torch.arange(heads * count, dtype=torch.int32, device=keys.device).view(1, heads, count)
    return Paged(array=array.flatten(0, 1), table=table, page_blocks=1)
