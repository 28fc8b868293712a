"""Lists of misses as the diffs of a session leave them: which blocks of its store, in which order, into which slots.

A session's store gives a row pages for all of its layers and KV heads one after the other, so a layer's list lies in
as many short stretches as there are pairs of row and head. In each it holds what a selection newly took, by a shipped
locality, in ascending order; pairs follow each other as their programs were launched.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.errors import ConfigError
from sparda_core.footprint import PAGE_BLOCKS
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.streams import Streams

Ids = npt.NDArray[np.int32]

#: Rows of the session; fewer where memory has no room for them.
PLACES = 24
#: Whose newcomers are told by how long ago they were selected last.
LOCALITY = "hisparse"
#: Blocks of each (row, head) that are still free to be written.
_FREE = PAGE_BLOCKS // 2
#: Blocks of a list that a draw may hold beyond those asked for; what is over is left out.
_OVER = 2


@attrs.frozen(kw_only=True)
class Layout:
    """Where a session of `rows` rows of `blocks` blocks each keeps what a list names. Pages of PAGE_BLOCKS blocks.

    layers  of the session's store
    heads   KV heads
    slots   of each (row, head)
    groups  layers whose slots lie apart; more layers take the same ones in turn
    """

    rows: int
    layers: int
    heads: int
    blocks: int
    slots: int
    groups: int

    def stored(self, layer: int, pair: int, blocks: Ids) -> Ids:
        """Where blocks of a (row, head), number row * heads + head, lie in the store."""
        row, head = divmod(pair, self.heads)
        stretch = -(-self.blocks // PAGE_BLOCKS) * PAGE_BLOCKS
        return blocks + np.int32(((row * self.layers + layer) * self.heads + head) * stretch)

    def slotted(self, layer: int, pair: int, slots: Ids) -> Ids:
        """Where slots of a (row, head) lie in the array of slots."""
        return slots + np.int32(((layer % self.groups) * self.rows * self.heads + pair) * self.slots)


def layout_of(sizes: Sizes, store_blocks: int, slot_blocks: int, layers: int) -> Layout:
    """The largest session whose store and slots have so many blocks, of at least so many layers.

    Raises ConfigError where there is no room for one row that selects.
    """
    heads, budget, layers = sizes.shape.kv_heads, sizes.spec.budget, max(layers, sizes.shape.layers)
    rows = min(PLACES, slot_blocks // (heads * budget))
    pages = store_blocks // (max(1, rows) * layers * heads * PAGE_BLOCKS)
    if rows < 1 or pages * PAGE_BLOCKS <= budget:
        raise ConfigError(
            f"a store of {store_blocks} blocks and {slot_blocks} slots have no room for a row of {layers} layers and "
            f"{heads} KV heads that selects {budget} blocks: give them more memory"
        )
    return Layout(
        rows=rows, layers=layers, heads=heads, blocks=pages * PAGE_BLOCKS, slots=budget,
        groups=max(1, slot_blocks // (rows * heads * budget)),
    )  # fmt: skip


class SessionLists:
    """Lists of `count` blocks each for the first `layers` layers of a session, new ones in every step."""

    def __init__(self, sizes: Sizes, layout: Layout, *, layers: int, count: int) -> None:
        """Raises ConfigError where selections cannot change that much."""
        self._layout, self._layers, self.count = layout, layers, count
        self._pairs = layout.rows * layout.heads
        churn = (count + _OVER) / (self._pairs * sizes.spec.budget) if count else 0.0
        model = attrs.evolve(load_locality(LOCALITY), churn=churn)
        tokens = (layout.blocks - _FREE) * sizes.spec.block
        model.check(sizes.spec, tokens)
        self._streams = Streams(model, sizes.spec, streams=self._pairs, tokens=tokens, seed=count)
        self._random = np.random.default_rng(count)
        self._before = self._streams.selection

    def step(self) -> Sequence[tuple[Ids, Ids]]:
        """(blocks of the store, slots) of each layer, int32 [count]; no slot twice in a layer.

        A block that the step opened has a slot and is not listed. Raises ConfigError once the rows' pages are full.
        """
        if not self.count:
            return [(np.empty(0, np.int32), np.empty(0, np.int32))] * self._layers
        now = self._streams.step()
        if now.max() >= self._layout.blocks:
            raise ConfigError(
                f"rows of {self._layout.blocks} blocks are full after {self._streams.tokens} tokens: make new lists"
            )
        fresh = [
            np.setdiff1d(new, [*old, self._streams.opened]) for new, old in zip(now, self._before, strict=True)
        ]
        self._before = now
        return [self._list(layer, fresh) for layer in range(self._layers)]

    def _list(self, layer: int, fresh: Sequence[Ids]) -> tuple[Ids, Ids]:
        sources, targets = [], []
        for pair in range(self._pairs):
            blocks = fresh[(layer + pair) % self._pairs]
            # Slots that a selection left are taken from the lowest on.
            slots = np.sort(self._random.permutation(self._layout.slots)[: blocks.size]).astype(np.int32)
            sources.append(self._layout.stored(layer, pair, blocks))
            targets.append(self._layout.slotted(layer, pair, slots))
        return np.concatenate(sources)[: self.count], np.concatenate(targets)[: self.count]
