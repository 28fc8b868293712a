"""The frozen model over one row of documents, layer by layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.models.decoder import Decoder, Projections, Visit
from sparda_core.models.rotary import Rotation

if TYPE_CHECKING:
    from collections.abc import Iterator


class HeldDecoder(Decoder):
    """A decoder whose layers must be fetched before use: weights shared out among processes, for one."""

    def held(self, layer: int) -> contextlib.AbstractContextManager[None]:
        """While entered, `layer`'s weights are there."""
        raise TypeError(f"{type(self).__name__} must say how layer {layer} is fetched")


@contextlib.contextmanager
def layer_at_hand(decoder: Decoder, layer: int) -> Iterator[None]:
    """While entered, `layer`'s weights may be used, wherever they are kept."""
    if isinstance(decoder, HeldDecoder):
        with decoder.held(layer):
            yield
    else:
        yield


def row_rotation(decoder: Decoder, lengths: Sequence[int]) -> Rotation:
    """Rotation of every token of a row, for [1, T, heads, D]; positions start anew with every document.

    Frequencies may depend on the length of the text: all documents of a row turn as the longest one.
    """
    if decoder.device.type != "cpu":
        decoder.rotary.grow(max(lengths))
    return decoder.rotation(torch.cat([torch.arange(n, device=decoder.device) for n in lengths])[None])


#: (layer, its projections, lengths of the documents) -> attention [1, Hq, T, D].
Attend = Callable[[int, Projections, Sequence[int]], torch.Tensor]


def read_row(
    decoder: Decoder, ids_T: torch.Tensor, lengths: Sequence[int], visit: Visit, attend: Attend | None = None
) -> None:
    """Run the layers over documents that lie one behind the other, without gradient.

    ids_T    int [T]
    lengths  tokens of each document, adding up to T; each starts at position 0 and attends to itself alone
    visit    called as visit(layer, projections) with [1, T, ...] tensors, before the layer's attention
    attend   gives a layer's attention; left out, each token attends to all before it in its document

    What comes after the last layer's projections is not computed: nobody looks at it.
    """
    layers = decoder.shape.layers
    with torch.no_grad():
        turn = row_rotation(decoder, lengths)
        x = decoder.embed(ids_T[None])
        for layer in range(layers):
            with layer_at_hand(decoder, layer):
                p = decoder.project(layer, x, turn)
                visit(layer, p)
                if layer < layers - 1:
                    group = decoder.shape.group
                    attention = attend_dense(p, lengths, group) if attend is None else attend(layer, p, lengths)
                    x = decoder.mlp(layer, decoder.output(layer, x, attention))


def attend_dense(p: Projections, lengths: Sequence[int], group: int) -> torch.Tensor:
    """Causal attention within each document, [1, Hq, T, D]."""
    parts, start = [], 0
    for length in lengths:
        stop = start + length
        known = None if p.bias is None else p.bias[:, :, start:stop]
        folded = fold_bias(p.q[:, :, start:stop], p.k[:, :, start:stop], p.v[:, :, start:stop], known)
        k, v = (t.repeat_interleave(group, dim=1) for t in (folded.keys, folded.values))
        mixed = F.scaled_dot_product_attention(folded.query, k, v, is_causal=True, scale=folded.scale)
        parts.append(folded.cut(mixed))
        start = stop
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
