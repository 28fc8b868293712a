"""Attention of whole documents by block selection, in plain tensors: what decoding attends to, at all positions.

Tokens before `first` are a document's prompt and attend to all before them; every later one to its forced blocks and
the best free ones by whatever scores its blocks. Gradients flow through attention, never through the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.objectives import BlockScores
from sparda_core.distill.recall import top_free
from sparda_core.distill.scores import bias_block_scores, entries_of, free_blocks, visible_entries
from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.shapes import BlockSpec

#: The first queries of a document -> how blocks of this document and layer are scored, [G, Q, N].
Scorer = Callable[[LayerLesson], BlockScores]
#: Copies of a chunk's attention logits that are alive at once: logits, mask, probabilities.
_COPIES = 3


@attrs.frozen(kw_only=True)
class Selection:
    """How documents are attended to.

    first        tokens of a document's prompt
    select_blocks  of a NOSA model: blocks beside sink and local that go by the score, the others by their tokens' bias;
                 0: all go by the score
    chunk_bytes  memory for attention logits: as many queries at once as fit; no result depends on it
    """

    decoder: Decoder
    spec: BlockSpec
    first: int
    chunk_bytes: int = 2**28
    select_blocks: int = 0

    def attend(
        self, layer: int, p: Projections, x_TE: torch.Tensor, lengths: Sequence[int], scorer: Scorer
    ) -> torch.Tensor:
        """Attention of `layer` over documents that lie one behind the other, [1, Hq, T, D].

        x_TE  what a lesson shows as the input that a Forecast sits on
        """
        parts, start = [], 0
        for length in lengths:
            parts.append(self._document(layer, p, x_TE, slice(start, start + length), scorer))
            start += length
        return torch.cat(parts, dim=1)[None]

    def _document(self, layer: int, p: Projections, x_TE: torch.Tensor, at: slice, scorer: Scorer) -> torch.Tensor:
        """[Hq, n, D] of one document."""
        q, k, v = (t[0, :, at] for t in (p.q, p.k, p.v))
        length, group = q.shape[1], self.decoder.shape.group
        folded = fold_bias(q[None], k[None], v[None], None if p.bias is None else p.bias[:, :, at])
        query, scale = folded.query[0], folded.scale
        keys, values = (t[0].repeat_interleave(group, dim=0) for t in (folded.keys, folded.values))
        prompt = min(self.first, length)
        done: list[torch.Tensor] = []
        if prompt:
            read = (query[:, :prompt], keys[:, :prompt], values[:, :prompt])
            done.append(_attention(*read, is_causal=True, scale=scale))
        step = max(1, self.chunk_bytes // (_COPIES * q.shape[0] * length * q.element_size()))
        with torch.no_grad():
            whole = k.to(torch.float64 if k.dtype == torch.float64 else torch.float32)
            entries = entries_of(whole, self.spec)
        score: BlockScores | None = None
        for start in range(prompt, length, step):
            stop = min(start + step, length)
            with torch.no_grad():
                asked = torch.arange(start, stop, device=q.device)
                x_QE, q_HQD = x_TE[at][start:stop].to(whole), q[:, start:stop].to(whole)
                lesson = self._lesson(layer, x_QE, q_HQD, whole, entries, asked)
                score = score or scorer(lesson)
                ranked = self._ranked(lesson, score(lesson), None if p.bias is None else p.bias[0, :, at])
                seen = seen_tokens(lesson, ranked)[..., :stop].repeat_interleave(group, dim=0)
            read = (query[:, start:stop], keys[:, :stop], values[:, :stop])
            done.append(_attention(*read, attn_mask=seen[None], scale=scale))
        return folded.cut(torch.cat(done, dim=1))

    def _ranked(self, lesson: LayerLesson, score: torch.Tensor, bias_GT: torch.Tensor | None) -> torch.Tensor:
        """By what the budget's blocks are chosen, [G, Q, N]: the score, or the bias below the first stage's blocks."""
        if not self.select_blocks:
            return score
        assert bias_GT is not None, "a run in two stages is of a model with a token bias (train.py)"
        first = top_free(score, lesson.free, self.select_blocks - 1)
        by_bias = bias_block_scores(bias_GT.to(score), lesson.positions, lesson.blocks, lesson.spec)
        return by_bias.masked_fill(first, torch.inf)

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


def _attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **how: Any) -> torch.Tensor:
    """[Hq, Q, D]; with a batch of one, because torch's fused kernels take four axes only."""
    return F.scaled_dot_product_attention(query[None], keys[None], values[None], **how)[0]


def seen_tokens(lesson: LayerLesson, score_GQN: torch.Tensor) -> torch.Tensor:
    """Bool [G, Q, T]: tokens of the forced blocks and of the best free ones, none after the query."""
    chosen = top_free(score_GQN, lesson.free, lesson.spec.free)
    block_N = torch.arange(lesson.blocks, device=chosen.device)
    current_Q = lesson.positions // lesson.spec.block
    forced_QN = ~lesson.free & (block_N[None, :] <= current_Q[:, None])
    tokens = torch.arange(lesson.k.shape[1], device=chosen.device)
    by_token = (chosen | forced_QN).index_select(-1, tokens // lesson.spec.block)
    return by_token & (tokens[None, :] <= lesson.positions[:, None])
