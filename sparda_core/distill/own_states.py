"""Hidden states that follow a Forecast's own selections: what it will meet when it is used (on-policy distillation).

A Forecast that is trained on the states of dense attention meets other ones in decode, where every layer before has
attended to what the Forecast chose, and mistakes can add up. Here the frozen model reads a row as decoding would:
tokens before `first` are its prompt and attend to all before them, every later one to the forced blocks and the best
free ones of the Forecast as it stands. Teacher and student see the same states; no gradient goes through them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.distill.lesson import LayerLesson, earlier_input
from sparda_core.distill.recall import top_free
from sparda_core.distill.scores import entries_of, free_blocks, visible_entries
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.shapes import BlockSpec

#: What the states of a run follow, by name: attention to everything, or to what the Forecast in training selects.
DENSE, FORECAST = "dense", "forecast"
STATES = (DENSE, FORECAST)
#: Copies of a chunk's attention logits that are alive at once: logits, mask, probabilities.
_COPIES = 3


@attrs.frozen(kw_only=True, eq=False)
class OwnStates:
    """Attention of one row of documents, layer after layer, by the selections of a Forecast.

    weights      [G * D, hidden] by the layer that is forecast
    first        tokens of a document's prompt, which attend densely
    chunk_bytes  memory for attention logits: as many queries at once as fit
    """

    decoder: Decoder
    weights: Sequence[torch.Tensor]
    lead: int
    spec: BlockSpec
    first: int
    chunk_bytes: int = 2**28
    _inputs: deque[torch.Tensor] = attrs.field(factory=deque, init=False)

    def attend(self, layer: int, p: Projections, lengths: Sequence[int]) -> torch.Tensor:
        """Attention of `layer`, [1, Hq, T, D]; layers must come in order. No gradient."""
        with torch.no_grad():
            earlier_TE = earlier_input(self._inputs, p.x_norm[0], self.lead)
            parts, start = [], 0
            for length in lengths:
                parts.append(self._document(layer, p, earlier_TE, slice(start, start + length)))
                start += length
            return torch.cat(parts, dim=1)[None]

    def _document(self, layer: int, p: Projections, earlier_TE: torch.Tensor, at: slice) -> torch.Tensor:
        """[Hq, n, D] of one document."""
        q, k, v = (t[0, :, at] for t in (p.q, p.k, p.v))
        length, group = q.shape[1], self.decoder.shape.group
        keys, values = (t.repeat_interleave(group, dim=0) for t in (k, v))
        prompt = min(self.first, length)
        done = [F.scaled_dot_product_attention(q[:, :prompt], keys[:, :prompt], values[:, :prompt], is_causal=True)]
        wide = torch.float64 if p.q.dtype == torch.float64 else torch.float32
        entries, whole = entries_of(k.to(wide), self.spec), k.to(wide)
        step = max(1, self.chunk_bytes // (_COPIES * q.shape[0] * length * q.element_size()))
        for start in range(prompt, length, step):
            stop = min(start + step, length)
            asked = torch.arange(start, stop, device=q.device)
            lesson = self._lesson(layer, earlier_TE[at][start:stop].to(wide), q[:, start:stop].to(wide), whole, entries,
                                  asked)  # fmt: skip
            seen = self.seen(lesson, self.weights[layer])[..., :stop].repeat_interleave(group, dim=0)
            done.append(
                F.scaled_dot_product_attention(q[:, start:stop], keys[:, :stop], values[:, :stop], attn_mask=seen)
            )
        return torch.cat(done, dim=1)

    def _lesson(
        self, layer: int, x_QE: torch.Tensor, q_HQD: torch.Tensor, k_GTD: torch.Tensor, entries: torch.Tensor,
        asked: torch.Tensor,
    ) -> LayerLesson:  # fmt: skip
        spec, tokens = self.spec, k_GTD.shape[1]
        return LayerLesson(
            layer=layer, x_before=x_QE, q=q_HQD, k=k_GTD, entries=entries,
            visible=visible_entries(asked, entries.shape[1], spec),
            free=free_blocks(asked, spec.block_count(tokens), spec),
            positions=asked, turn=self.decoder.rotation(asked[None]), spec=spec,
        )  # fmt: skip

    @staticmethod
    def seen(lesson: LayerLesson, weight_RE: torch.Tensor) -> torch.Tensor:
        """Bool [G, Q, T]: tokens of the blocks that a Forecast with these weights selects, none after the query."""
        chosen = top_free(lesson.student(weight_RE.to(lesson.x_before)), lesson.free, lesson.spec.free)
        block_N = torch.arange(lesson.blocks, device=chosen.device)
        current_Q = lesson.positions // lesson.spec.block
        forced_QN = ~lesson.free & (block_N[None, :] <= current_Q[:, None])
        tokens = torch.arange(lesson.k.shape[1], device=chosen.device)
        by_token = (chosen | forced_QN).index_select(-1, tokens // lesson.spec.block)
        return by_token & (tokens[None, :] <= lesson.positions[:, None])
