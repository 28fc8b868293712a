"""EntryBuffers: entries and newest keys of all layers on the device, in memory of fixed size."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype
from sparda_core.runtimes.gpu.sizes import StoreSizes
from sparda_core.shapes import BlockSpec


class EntryBuffers:
    """L layers, B places, Hk KV heads, C entries that a row may reach, D head dim.

    entries  [L, B, Hk, C, D]; how many of a row exist follows from its length
    ring     [L, B, Hk, window, D], the newest keys: that of position p at p % window
    """

    def __init__(self, sizes: StoreSizes) -> None:
        self._spec = sizes.spec
        self.entries = sizes.empty(*sizes.lead, max(1, sizes.spec.entry_count(sizes.tokens)), sizes.head_dim)
        self.ring = sizes.empty(*sizes.lead, sizes.spec.window, sizes.head_dim)

    @property
    def used_bytes(self) -> int:
        """Bytes of both."""
        return self.entries.nbytes + self.ring.nbytes

    def copy(self, source: int, target: int, tokens: int) -> None:
        """`target` has the entries and newest keys of `source`, a row of `tokens` tokens."""
        count = self._spec.entry_count(tokens)
        self.entries[:, target, :, :count].copy_(self.entries[:, source, :, :count])
        self.ring[:, target].copy_(self.ring[:, source])

    def extend(self, at: int, place: int, keys: torch.Tensor, start: int) -> None:
        """See keys [Hk, n, D] of tokens start .., in one layer: write the entries that they complete, keep the newest.

        The ring must hold the keys before `start`.
        """
        stop, spec, ring = start + keys.shape[1], self._spec, self.ring[at, place]
        before, after = spec.entry_count(start), spec.entry_count(stop)
        keys = keys.to(ring.dtype)
        if after > before:
            first = before * spec.stride
            if first < start:
                older = torch.arange(first, start, device=keys.device) % spec.window
                covered = torch.cat([ring.index_select(1, older), keys], 1)
            else:
                covered = keys[:, first - start :]
            self.entries[at, place, :, before:after] = means(covered, spec)
        self.keep(at, place, keys[:, -spec.window :], stop)

    def keep(self, at: int | slice, place: int, keys: torch.Tensor, stop: int) -> None:
        """Put keys [(L,) Hk, n, D], n <= window, of the tokens before `stop` into the ring."""
        places = torch.arange(stop - keys.shape[-2], stop, device=keys.device) % self._spec.window
        self.ring[at, place].index_copy_(-2, places, keys.to(self.ring.dtype))


def means(keys: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Entries [Hk, C, D] of keys [Hk, n, D], the first of which begins an entry; a tail that completes none is cut.

    Summed stride by stride, in float32 at least: every key is read once.
    """
    heads, tokens, width = keys.shape
    strides, per_entry = tokens // spec.stride, spec.window // spec.stride
    sums = keys[:, : strides * spec.stride].view(heads, strides, spec.stride, width).to(compute_dtype(keys)).sum(2)
    count = strides - per_entry + 1
    entries = sum(sums[:, i : i + count] for i in range(per_entry))
    assert isinstance(entries, torch.Tensor)
    return (entries / spec.window).to(keys.dtype)
