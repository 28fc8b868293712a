"""The dense pass over a window, and the sparse path that leaves it: positions that attend to what a method chooses.

From `first` on, every layer's input, keys and values follow the sparse path, so a choice is judged by what it
leads to; everything before is the dense state, shared by all methods.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.evaluate.study.methods import Method
from sparda_core.evaluate.study.ranks import Bounds
from sparda_core.evaluate.study.scene import Scene, wide
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.models.rotary import Rotation
from sparda_core.selectors.tensors.skew import partial_projection
from sparda_core.shapes import BlockSpec

#: Values of a mask held at once, heads x queries x tokens.
MOST_MASK = {"cuda": 2**28, "cpu": 2**25}
#: First tokens of a text that InfiniGen's rotation is made from, as in the SparDA release.
CALIBRATION = 2048

Consume = Callable[[Scene], None]


@attrs.frozen(kw_only=True, eq=False)
class Dense:
    """A window after the dense pass.

    ids    int64 [T]
    first  first position that a path judges
    keys, values  one [G, first, D] a layer: what every path starts from
    biases  one [G, first] a layer, or None where the model has no token bias
    skews   one [G, D, C] a layer, the directions of keys that InfiniGen keeps; None where none were asked for
    out    [T - first, hidden], the residual stream of the judged positions
    """

    ids: torch.Tensor
    first: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    biases: list[torch.Tensor | None]
    skews: list[torch.Tensor | None]
    out: torch.Tensor


def run_dense(
    decoder: Decoder, ids_T: torch.Tensor, *, first: int, spec: BlockSpec, reach: int = 1, channels: int = 0,
    consume: Consume | None = None,
) -> Dense:  # fmt: skip
    """Run the model densely over a window.

    reach    how many earlier layers' inputs a scene shows
    channels dimensions that InfiniGen keeps of each key: those of a rotation by the first CALIBRATION tokens in which
             all queries before `first` are strongest; 0: it is not asked
    consume  called with the scene of every layer, in order, at positions first .. T - 1
    """
    view = _View(decoder, ids_T, first, spec, reach)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    biases: list[torch.Tensor | None] = []
    skews: list[torch.Tensor | None] = []

    def visit(layer: int, p: Projections) -> None:
        keys.append(p.k[0, :, :first].contiguous())
        values.append(p.v[0, :, :first].contiguous())
        biases.append(None if p.bias is None else p.bias[0, :, :first].contiguous())
        skews.append(_skewed(p, first, channels) if channels else None)
        if consume is not None:
            bias = None if p.bias is None else p.bias[0]
            consume(view.scene(layer, p.x_norm[0, first:], p.q[0, :, first:], p.k[0], bias, skews[layer]))

    with torch.no_grad():
        out = decoder.dense_forward(ids_T[None], visit=visit, logits="none")[0, first:]
    return Dense(ids=ids_T, first=first, keys=keys, values=values, biases=biases, skews=skews, out=out)


def run_path(
    decoder: Decoder, dense: Dense, method: Method, budget: int, *, scorer: Scorer, spec: BlockSpec
) -> torch.Tensor:
    """Residual stream [T - first, hidden] of the judged positions, every layer attending to the method's choice."""
    first, count = dense.first, spec.with_budget(budget).free
    view = _View(decoder, dense.ids, first, spec, scorer.lead(method))
    bounds = Bounds.of(view.positions, spec.block_count(len(dense.ids)), spec)
    with torch.no_grad():
        x = decoder.embed(dense.ids[None, first:])
        for layer in range(decoder.shape.layers):
            p = decoder.project(layer, x, view.turn)
            k = torch.cat((dense.keys[layer], p.k[0]), dim=1)
            v = torch.cat((dense.values[layer], p.v[0]), dim=1)
            before = dense.biases[layer]
            bias = None if before is None or p.bias is None else torch.cat((before, p.bias[0]), dim=1)
            scene = view.scene(layer, p.x_norm[0], p.q[0], k, bias, dense.skews[layer])
            chosen = scorer.order(method, scene, bounds).chosen(count) | bounds.forced
            attended = sparse_attention(p.q[0], k, v, chosen, view.positions, spec.block, bias)
            x = decoder.mlp(layer, decoder.output(layer, x, attended[None]))
    return x[0]


def sparse_attention(
    q_HQD: torch.Tensor, k_GTD: torch.Tensor, v_GTD: torch.Tensor, chosen_GQN: torch.Tensor,
    positions_Q: torch.Tensor, block: int, bias_GT: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Causal attention of consecutive positions to the tokens of the chosen blocks, [H, Q, D] in q's dtype.

    bias_GT  added to the logits of each token
    """
    groups, heads = k_GTD.shape[0], q_HQD.shape[0]
    folded = fold_bias(q_HQD[None], k_GTD[None], v_GTD[None], None if bias_GT is None else bias_GT[None])
    k_GTD, v_GTD = folded.keys[0], folded.values[0]
    q = folded.query[0].reshape(groups, heads // groups, *folded.query.shape[2:])
    step = max(1, MOST_MASK["cuda" if q.is_cuda else "cpu"] // (heads * k_GTD.shape[1]))
    out = []
    for at in range(0, q.shape[2], step):
        position = positions_Q[at : at + step]
        upto = int(position[-1]) + 1
        mask = chosen_GQN[:, at : at + step].repeat_interleave(block, dim=-1)[..., :upto]
        mask &= torch.arange(upto, device=q.device)[None] <= position[:, None]
        k, v = (t[:, None, :upto].expand(-1, q.shape[1], -1, -1) for t in (k_GTD, v_GTD))
        out.append(F.scaled_dot_product_attention(
            q[:, :, at : at + step], k, v, attn_mask=mask[:, None], scale=folded.scale
        ))  # fmt: skip
    return folded.cut(torch.cat(out, dim=2).flatten(0, 1))


def _skewed(p: Projections, first: int, channels: int) -> torch.Tensor:
    """Of the queries before the judged positions, [G, D, C]."""
    queries = p.q[0, :, :first]
    return partial_projection(
        queries.to(wide(queries.dtype)), kv_heads=p.k.shape[1], channels=min(channels, queries.shape[-1]),
        rotated_by=CALIBRATION,
    )  # fmt: skip


class _View:
    """Makes the scenes of a pass: widens what methods score from, and remembers the inputs of earlier layers."""

    def __init__(self, decoder: Decoder, ids_T: torch.Tensor, first: int, spec: BlockSpec, reach: int) -> None:
        self.positions = torch.arange(first, len(ids_T), device=ids_T.device)
        self.turn: Rotation = decoder.rotation(self.positions[None])
        self._decoder, self._spec, self._reach = decoder, spec, reach
        self._inputs: dict[int, torch.Tensor] = {}

    def scene(
        self, layer: int, x_QE: torch.Tensor, q_HQD: torch.Tensor, k_GTD: torch.Tensor,
        bias_GT: torch.Tensor | None, skew_GDC: torch.Tensor | None,
    ) -> Scene:  # fmt: skip
        dtype = wide(self._decoder.dtype)
        self._inputs[layer] = x_QE.to(dtype)
        self._inputs.pop(layer - self._reach - 1, None)
        return Scene(
            decoder=self._decoder, spec=self._spec, layer=layer, positions=self.positions, q=q_HQD.to(dtype),
            k=k_GTD.to(dtype), inputs=dict(self._inputs), turn=self.turn,
            bias=None if bias_GT is None else bias_GT.to(dtype), skew=None if skew_GDC is None else skew_GDC.to(dtype),
        )  # fmt: skip
