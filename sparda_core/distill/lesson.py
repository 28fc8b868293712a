"""One pass of the frozen model over a window, seen layer by layer at chosen query positions."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from sparda_core.distill.scores import (
    entries_of,
    forecast_entry_scores,
    free_blocks,
    pool_blocks,
    query_entry_scores,
    visible_entries,
)
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.models.rotary import Rotation
from sparda_core.shapes import BlockSpec


@attrs.frozen(eq=False)
class LayerLesson:
    """What is known of one layer at Q positions; float32 (float64 for a float64 model), no gradient.

    layer      the layer whose blocks are to be chosen
    x_before   [Q, hidden]  normed input of the layer before, where the Forecast sits; layer 0's own for layer 0
    q          [H, Q, D]    the layer's queries at the positions, rotary applied
    k          [G, T, D]    all its keys, rotary applied
    entries    [G, C, D]    its entries
    visible    [Q, C]       which entries a query may see
    free       [Q, N]       which blocks are free to choose
    positions  [Q]          where the queries are
    turn       rotation of the positions, for [1, Q, heads, D]
    """

    layer: int
    x_before: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    entries: torch.Tensor
    visible: torch.Tensor
    free: torch.Tensor
    positions: torch.Tensor
    turn: Rotation
    spec: BlockSpec

    @property
    def blocks(self) -> int:
        """Blocks of the window."""
        return self.free.shape[1]

    def pool(self, score_GQC: torch.Tensor) -> torch.Tensor:
        """Entry scores to block scores [G, Q, N]."""
        return pool_blocks(score_GQC, self.blocks, self.spec)

    def teacher(self) -> torch.Tensor:
        """Block scores of the query-driven selector with this layer's true queries, [G, Q, N]."""
        return self.pool(query_entry_scores(self.q, self.entries, self.visible))

    def heads(self, weight_RE: torch.Tensor) -> torch.Tensor:
        """Project the earlier input and rotate: weight [heads * D, hidden] -> [heads, Q, D]."""
        head_dim = self.q.shape[-1]
        flat = (self.x_before @ weight_RE.t()).view(1, self.x_before.shape[0], -1, head_dim)
        return self.turn.apply(flat)[0].transpose(0, 1)

    def student(self, weight_RE: torch.Tensor) -> torch.Tensor:
        """Block scores of a Forecast with these weights [G * D, hidden], [G, Q, N]; differentiable."""
        return self.pool(forecast_entry_scores(self.heads(weight_RE), self.entries, self.visible))


def observe(
    decoder: Decoder,
    ids_T: torch.Tensor,
    positions_Q: torch.Tensor,
    spec: BlockSpec,
    consume: Callable[[LayerLesson], None],
) -> None:
    """Run `decoder` densely over one window and hand each layer, in order, to `consume`.

    ids_T  int [T], one window from position 0; positions_Q  int [Q], ascending.
    Nothing of a layer is kept after the next one, so memory does not grow with depth.
    """
    wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
    turn = decoder.rotation(positions_Q[None])
    visible_QC = visible_entries(positions_Q, spec.entry_count(len(ids_T)), spec)
    free_QN = free_blocks(positions_Q, spec.block_count(len(ids_T)), spec)
    before: list[torch.Tensor] = []

    def visit(layer: int, p: Projections) -> None:
        x_QE = p.x_norm[0, positions_Q].to(wide)
        k_GTD = p.k[0].to(wide)
        consume(
            LayerLesson(
                layer=layer,
                x_before=before.pop() if before else x_QE,
                q=p.q[0, :, positions_Q].to(wide),
                k=k_GTD,
                entries=entries_of(k_GTD, spec),
                visible=visible_QC,
                free=free_QN,
                positions=positions_Q,
                turn=turn,
                spec=spec,
            )
        )
        before.append(x_QE)

    with torch.no_grad():
        decoder.dense_forward(ids_T[None], visit=visit, logits="none")
