"""The bias of one new token a place, one place at a time."""

from __future__ import annotations

import torch

from sparda_core.shapes import BlockSpec


def keep_bias(
    value: torch.Tensor, scale: torch.Tensor, delta: torch.Tensor, position: torch.Tensor, *, tokens: torch.Tensor,
    means: torch.Tensor, spec: BlockSpec,
) -> None:  # fmt: skip
    """See `token_bias.gpu.keep_bias`; computed in float64."""
    for row, here in enumerate(position.tolist()):
        if here < 0:
            continue
        x = delta.double() @ value[row].flatten().double()
        tokens[row, :, here] = (scale.double() * torch.nn.functional.softplus(x)).to(tokens)
        first = here + 1 - spec.window
        if first >= 0 and first % spec.stride == 0:
            means[row, :, first // spec.stride] = tokens[row, :, first : here + 1].double().mean(-1).to(means)
