"""One pass of the frozen model over a window, seen layer by layer at chosen query positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs
import torch

from sparda_core.distill.backbone import Attend, read_row, row_rotation
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
    x_before   [Q, hidden]  normed input of the layer `lead` before, where the Forecast sits; the first layers' own
    q          [H, Q, D]    the layer's queries at the positions, rotary applied
    k          [G, T, D]    all its keys, rotary applied
    entries    [G, C, D]    its entries
    visible    [Q, C]       which entries a query may see
    free       [Q, N]       which blocks are free to choose
    positions  [Q]          where the queries are
    turn       rotation of the positions, for [1, Q, heads, D]
    bias       [G, T]       what the model adds to the logits of each token; None where it adds nothing
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
    bias: torch.Tensor | None = None

    @property
    def blocks(self) -> int:
        """Blocks of the window."""
        return self.free.shape[1]

    def part(self, at: slice) -> LayerLesson:
        """The same lesson at some of its positions; nothing is copied."""
        return attrs.evolve(
            self,
            x_before=self.x_before[at],
            q=self.q[:, at],
            visible=self.visible[at],
            free=self.free[at],
            positions=self.positions[at],
            turn=Rotation(self.turn.cos[:, at], self.turn.sin[:, at]),
        )

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


@attrs.frozen(eq=False)
class _Place:
    """One document of a row: its tokens [start, stop), the queries `asked` [Q] within it and what they share."""

    start: int
    stop: int
    asked: slice
    positions: torch.Tensor
    visible: torch.Tensor
    free: torch.Tensor
    turn: Rotation


def _places(
    decoder: Decoder, lengths: Sequence[int], positions_Q: torch.Tensor, spec: BlockSpec
) -> list[_Place]:
    """Documents that any query lies in."""
    found, start, at = [], 0, 0
    turn = row_rotation(decoder, lengths)  # as the row's own queries and keys
    for length in lengths:
        stop = start + length
        end = at + int(((positions_Q >= start) & (positions_Q < stop)).sum())
        if end > at:
            within = positions_Q[at:end] - start
            found.append(
                _Place(
                    start=start,
                    stop=stop,
                    asked=slice(at, end),
                    positions=within,
                    visible=visible_entries(within, spec.entry_count(length), spec),
                    free=free_blocks(within, spec.block_count(length), spec),
                    turn=Rotation(turn.cos[:, positions_Q[at:end]], turn.sin[:, positions_Q[at:end]]),
                )
            )
        start, at = stop, end
    return found


def observe(
    decoder: Decoder,
    ids_T: torch.Tensor,
    positions_Q: torch.Tensor,
    spec: BlockSpec,
    consume: Callable[[LayerLesson], None],
    *,
    lengths: Sequence[int] | None = None,
    lead: int = 1,
    attend: Attend | None = None,
) -> None:
    """Run `decoder` over one row and hand each layer, in order, to `consume`.

    ids_T        int [T]
    positions_Q  int [Q], ascending, counted from the start of the row
    lengths      tokens of the documents that the row is made of, one if left out. Each starts at position 0,
                 sees itself alone and makes a lesson of its own a layer, if any query lies in it.
    lead         layers between a Forecast and the layer that it is for
    attend       attention that the states follow; dense if left out (see own_states.py)
    Of a layer only its input at the positions is kept, for `lead` layers, so memory does not grow with depth.
    """
    wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
    lengths = (len(ids_T),) if lengths is None else tuple(lengths)
    places = _places(decoder, lengths, positions_Q, spec)
    before: deque[torch.Tensor] = deque()

    def visit(layer: int, p: Projections) -> None:
        x_QE = p.x_norm[0, positions_Q].to(wide)
        earlier_QE = earlier_input(before, x_QE, lead)
        q_HQD = p.q[0, :, positions_Q].to(wide)
        for place in places:
            k_GTD = p.k[0, :, place.start : place.stop].to(wide)
            consume(
                LayerLesson(
                    layer=layer,
                    x_before=earlier_QE[place.asked],
                    q=q_HQD[:, place.asked],
                    k=k_GTD,
                    entries=entries_of(k_GTD, spec),
                    visible=place.visible,
                    free=place.free,
                    positions=place.positions,
                    turn=place.turn,
                    spec=spec,
                    bias=None if p.bias is None else p.bias[0, :, place.start : place.stop].to(wide),
                )
            )

    read_row(decoder, ids_T, lengths, visit, attend)


def earlier_input(before: deque[torch.Tensor], x: torch.Tensor, lead: int) -> torch.Tensor:
    """Input of the layer `lead` before this one, whose own is `x`; its own where there is none. Keeps `x` for later."""
    earlier = before.popleft() if len(before) == lead else x
    before.append(x)
    return earlier
