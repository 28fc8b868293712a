"""Hidden states that follow a Forecast's own selections: what it will meet when it is used (on-policy distillation).

A Forecast that is trained on the states of dense attention meets other ones in decode, where every layer before has
attended to what the Forecast chose, and mistakes can add up. Here the frozen model reads a row as decoding would:
tokens before `first` are its prompt and attend to all before them, every later one to the forced blocks and the best
free ones of the Forecast as it stands. Teacher and student see the same states; no gradient goes through them.

The published training has the layers attend to what the *teacher* selects, since its models were made for that: the
same, with the teacher's scores in place of the Forecast's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.distill.lesson import LayerLesson, earlier_input
from sparda_core.distill.objectives import BlockScores, Objective
from sparda_core.distill.recall import top_free
from sparda_core.distill.scores import entries_of, free_blocks, visible_entries
from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.shapes import BlockSpec

#: What the states of a run follow, by name: attention to everything, or to what Forecast or teacher select.
DENSE, FORECAST, TEACHER = "dense", "forecast", "teacher"
STATES = (DENSE, FORECAST, TEACHER)
#: Copies of a chunk's attention logits that are alive at once: logits, mask, probabilities.
_COPIES = 3


@attrs.frozen(kw_only=True, eq=False)
class OwnStates:
    """Attention of one row of documents, layer after layer, by the selections of a Forecast or a teacher.

    weights      [G * D, hidden] by the layer that is forecast
    first        tokens of a document's prompt, which attend densely
    chunk_bytes  memory for attention logits: as many queries at once as fit
    teacher      the objective whose teacher selects; the Forecast does if left out
    """

    decoder: Decoder
    weights: Sequence[torch.Tensor]
    lead: int
    spec: BlockSpec
    first: int
    chunk_bytes: int = 2**28
    teacher: Objective | None = None
    _inputs: deque[torch.Tensor] = attrs.field(factory=deque, init=False)

    def attend(self, layer: int, p: Projections, lengths: Sequence[int]) -> torch.Tensor:
        """Attention of `layer`, [1, Hq, T, D]; layers must come in order. No gradient."""
        with torch.no_grad():
            return self.mixed(layer, p, earlier_input(self._inputs, p.x_norm[0], self.lead), lengths)

    def mixed(self, layer: int, p: Projections, earlier_TE: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """The same with the input that the Forecast sits on given, and with gradients through attention, never through
        the choice; layers may come in any order.
        """
        parts, start = [], 0
        for length in lengths:
            parts.append(self._document(layer, p, earlier_TE, slice(start, start + length)))
            start += length
        return torch.cat(parts, dim=1)[None]

    def _document(self, layer: int, p: Projections, earlier_TE: torch.Tensor, at: slice) -> torch.Tensor:
        """[Hq, n, D] of one document."""
        q, k, v = (t[0, :, at] for t in (p.q, p.k, p.v))
        length, group = q.shape[1], self.decoder.shape.group
        folded = fold_bias(q[None], k[None], v[None], None if p.bias is None else p.bias[:, :, at])
        query, scale = folded.query[0], folded.scale
        keys, values = (t[0].repeat_interleave(group, dim=0) for t in (folded.keys, folded.values))
        prompt = min(self.first, length)
        done = []
        if prompt:
            read = (query[:, :prompt], keys[:, :prompt], values[:, :prompt])
            done = [F.scaled_dot_product_attention(*read, is_causal=True, scale=scale)]
        whole = k.detach().to(torch.float64 if p.q.dtype == torch.float64 else torch.float32)
        entries = entries_of(whole, self.spec)
        step = max(1, self.chunk_bytes // (_COPIES * q.shape[0] * length * q.element_size()))
        score: BlockScores | None = None
        for start in range(prompt, length, step):
            stop = min(start + step, length)
            asked = torch.arange(start, stop, device=q.device)
            with torch.no_grad():
                x_QE, q_HQD = earlier_TE[at][start:stop].to(whole), q[:, start:stop].to(whole)
                lesson = self._lesson(layer, x_QE, q_HQD, whole, entries, asked)
                score = score or self._score(lesson)
                seen = self.seen(lesson, score(lesson))[..., :stop].repeat_interleave(group, dim=0)
            read = (query[:, start:stop], keys[:, :stop], values[:, :stop])
            done.append(F.scaled_dot_product_attention(*read, attn_mask=seen, scale=scale))
        return folded.cut(torch.cat(done, dim=1))

    def _lesson(
        self, layer: int, x_QE: torch.Tensor, q_HQD: torch.Tensor, k_GTD: torch.Tensor, entries: torch.Tensor,
        asked: torch.Tensor,
    ) -> LayerLesson:  # fmt: skip
        spec, blocks = self.spec, self.spec.block_count(k_GTD.shape[1])
        return LayerLesson(
            layer=layer, x_before=x_QE, q=q_HQD, k=k_GTD, entries=entries,
            visible=visible_entries(asked, entries.shape[1], spec), free=free_blocks(asked, blocks, spec),
            positions=asked, turn=self.decoder.rotation(asked[None]), spec=spec,
        )  # fmt: skip

    def _score(self, lesson: LayerLesson) -> BlockScores:
        """How blocks of this document and layer are scored."""
        if self.teacher is not None:
            return self.teacher.selection(lesson)
        weight = self.weights[lesson.layer].to(lesson.x_before)
        return lambda part: part.student(weight)

    @staticmethod
    def seen(lesson: LayerLesson, score_GQN: torch.Tensor) -> torch.Tensor:
        """Bool [G, Q, T]: tokens of the blocks that these scores select, none after the query."""
        chosen = top_free(score_GQN, lesson.free, lesson.spec.free)
        block_N = torch.arange(lesson.blocks, device=chosen.device)
        current_Q = lesson.positions // lesson.spec.block
        forced_QN = ~lesson.free & (block_N[None, :] <= current_Q[:, None])
        tokens = torch.arange(lesson.k.shape[1], device=chosen.device)
        by_token = (chosen | forced_QN).index_select(-1, tokens // lesson.spec.block)
        return by_token & (tokens[None, :] <= lesson.positions[:, None])
