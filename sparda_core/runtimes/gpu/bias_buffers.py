"""BiasBuffers: token biases of all layers on the device, and the means that blocks are ranked by."""

from __future__ import annotations

import torch

from sparda_core.runtimes.gpu.entry_buffers import means
from sparda_core.runtimes.gpu.sizes import StoreSizes


class BiasBuffers:
    """L layers, B places, Hk KV heads, N tokens and C entries that a row may reach; float32.

    tokens  [L, B, Hk, N]
    means   [L, B, Hk, C]; how many of a row exist follows from its length, as with entries
    Biases never move: a layer's attention reads them on the device, wherever its blocks lie.
    """

    def __init__(self, sizes: StoreSizes) -> None:
        self._spec = sizes.spec
        entries = max(1, sizes.spec.entry_count(sizes.tokens))
        self.tokens, self.means = (
            torch.empty(*sizes.lead, width, dtype=torch.float32, device=sizes.device)
            for width in (sizes.tokens, entries)
        )

    @property
    def used_bytes(self) -> int:
        """Bytes of both."""
        return self.tokens.nbytes + self.means.nbytes

    def copy(self, source: int, target: int, tokens: int) -> None:
        """`target` has the biases of `source`, a row of `tokens` tokens."""
        for kept, count in ((self.tokens, tokens), (self.means, self._spec.entry_count(tokens))):
            kept[:, target, :, :count].copy_(kept[:, source, :, :count])

    def extend(self, layer: int, place: int, bias: torch.Tensor, start: int) -> None:
        """Write biases [Hk, n] of the tokens from `start` on, and the means that they complete."""
        stop, spec, row = start + bias.shape[1], self._spec, self.tokens[layer, place]
        row[:, start:stop].copy_(bias)
        before, after = spec.entry_count(start), spec.entry_count(stop)
        if after > before:
            made = means(row[:, before * spec.stride : stop, None], spec)
            self.means[layer, place, :, before:after].copy_(made[..., 0])
