"""What one layer shows at some query positions, dense or along a sparse path: all that any method scores from."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from sparda_core.distill.scores import entries_of
from sparda_core.models.decoder import Decoder
from sparda_core.models.rotary import Rotation
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """One layer at Q positions of a sequence of T tokens.

    layer      the layer whose blocks are to be chosen
    positions  int64 [Q], consecutive
    q          [H, Q, D]  its queries, rotary applied
    k          [G, T, D]  its keys up to the last position, rotary applied
    inputs     [Q, hidden] normed input by layer: this layer's own and those before it that a method may look at
    turn       rotation of the positions, for [1, Q, heads, D]
    bias       [G, T]  what the model adds to the logits of each token; None where it adds nothing
    skew       [G, D, C]  the directions of keys that InfiniGen keeps, from the text before; None where nobody asked
    All in float32, in float64 for a float64 model.
    """

    decoder: Decoder
    spec: BlockSpec
    layer: int
    positions: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    inputs: Mapping[int, torch.Tensor]
    turn: Rotation
    bias: torch.Tensor | None = None
    skew: torch.Tensor | None = None
    _entries: dict[tuple[int, int], torch.Tensor] = attrs.field(factory=dict, init=False)

    @property
    def blocks(self) -> int:
        """Blocks that hold the keys."""
        return self.spec.block_count(self.k.shape[1])

    def entries(self, grid: tuple[int, int]) -> torch.Tensor:
        """Means of keys on a grid (window, stride), [G, C, D]; made once a layer and grid."""
        if grid not in self._entries:
            self._entries[grid] = entries_of(self.k, self.on(grid))
        return self._entries[grid]

    def on(self, grid: tuple[int, int]) -> BlockSpec:
        """The cut with entries on this grid."""
        return attrs.evolve(self.spec, window=grid[0], stride=grid[1])

    def heads(self, weight_RE: torch.Tensor, source: int) -> torch.Tensor:
        """Project layer `source`'s input by [heads * D, hidden] and rotate: [heads, Q, D]."""
        x_QE = self.inputs[source]
        flat = (x_QE @ weight_RE.to(x_QE).t()).view(1, x_QE.shape[0], -1, self.q.shape[-1])
        return self.turn.apply(flat)[0].transpose(0, 1)

    def proxy(self) -> torch.Tensor:
        """InfiniGen's: this layer's own query projection, as the model has it, on the input of the layer before."""
        x_QE = self.inputs[self.layer - 1].to(self.decoder.dtype)
        return self.decoder.query_of(self.layer, x_QE[None], self.turn)[0].to(self.q)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What scores of a model of this dtype are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
