"""A model small enough to hold in the hand: random keys and queries, and views of them.

`x` of a layer carries one query per target layer, so that `query_of` only has to cut it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core.layer_view import EntryView, LayerView
from sparda_core.plan import Phase
from sparda_core.selection import check_selection
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(
    name="held", layers=3, hidden=24, ffn=32, q_heads=6, kv_heads=2, head_dim=8, vocab=11, context=4096
)  # fmt: skip
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
GROUP, HEAD_DIM = SHAPE.group, SHAPE.head_dim


@attrs.define
class World:
    """Texts of the same length, known in full from the start; a view shows a part of them.

    entries    [texts, L, Hk, C, D], means of every full window of keys

    keys       [texts, L, Hk, N, D]
    x          [texts, L, N, L * Hq * D]
    forecasts  [texts, L, Hk, N, D], the Forecast for each layer
    biases     [texts, L, Hk, N, 1], the token bias
    means      [texts, L, Hk, C, 1], its means over every full window
    poison     what lies in memory beyond what a view may show
    """

    keys: torch.Tensor
    x: torch.Tensor
    forecasts: torch.Tensor
    biases: torch.Tensor
    spec: BlockSpec = SPEC
    poison: float = float("nan")
    entries: torch.Tensor = attrs.field(init=False)
    means: torch.Tensor = attrs.field(init=False)

    @entries.default
    def _every_entry(self) -> torch.Tensor:
        return self.keys.unfold(3, self.spec.window, self.spec.stride).mean(-1)

    @means.default
    def _every_mean(self) -> torch.Tensor:
        return self.biases.unfold(3, self.spec.window, self.spec.stride).mean(-1)

    @classmethod
    def random(cls, *, texts: int = 3, tokens: int = 200, seed: int = 0, **given: Any) -> World:
        source = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=source, dtype=torch.float64)

        layers, heads = SHAPE.layers, SHAPE.kv_heads
        return cls(
            keys=draw(texts, layers, heads, tokens, HEAD_DIM),
            x=draw(texts, layers, tokens, layers * SHAPE.q_heads * HEAD_DIM),
            forecasts=draw(texts, layers, heads, tokens, HEAD_DIM),
            biases=draw(texts, layers, heads, tokens, 1),
            **given,
        )

    def splice(self, first: int, then: int, at: int) -> int:
        """A new text: `first` up to token `at`, then `then`."""
        for name, axis in (("keys", 3), ("x", 2), ("forecasts", 3), ("biases", 3)):
            texts = getattr(self, name)
            head, tail = texts[first : first + 1].narrow(axis, 0, at), texts[then : then + 1]
            mixed = torch.cat((head, tail.narrow(axis, at, tail.shape[axis] - at)), axis)
            setattr(self, name, torch.cat((texts, mixed)))
        self.entries, self.means = self._every_entry(), self._every_mean()
        return self.keys.shape[0] - 1

    def view(
        self, texts: Sequence[int], positions: Sequence[Sequence[int]], *, layer: int, source: int | None = None,
        phase: Phase = Phase.DECODE, rows: Sequence[int] | None = None,
    ) -> LayerView:  # fmt: skip
        """What a selector may see of `texts` at `positions`; a row of negative positions is inactive."""
        source = layer if source is None else source
        at = torch.tensor(positions)
        # A layer early, the target's newest token is not there yet.
        known = [max(0, max(row) + (1 if source == layer else 0)) for row in positions]
        x = torch.stack([self.x[text, source, at[i].clamp_min(0)] for i, text in enumerate(texts)])
        seen = at.clamp_min(0)
        forecast = torch.stack([self.forecasts[text, layer, :, seen[i]] for i, text in enumerate(texts)])
        return LayerView(
            layer=layer, source=source, phase=phase, spec=self.spec, rows=tuple(texts if rows is None else rows),
            positions=at, x=x, query=query_of(layer, x, at) if source == layer else None, forecast=forecast,
            entries=self._entries(self.entries, texts, layer, known), query_of=query_of,
            keys=lambda: self._keys(texts, layer, known), bias=self._entries(self.means, texts, layer, known),
        )  # fmt: skip

    def _entries(self, entries: torch.Tensor, texts: Sequence[int], layer: int, known: Sequence[int]) -> EntryView:
        counts = [self.spec.entry_count(tokens) for tokens in known]
        places = [2 * (len(texts) - 1 - i) for i in range(len(texts))]  # neither in order nor side by side
        size = (2 * len(texts), SHAPE.kv_heads, max(counts) + 3, entries.shape[-1])
        buffer = torch.full(size, self.poison, dtype=torch.float64)
        for text, place, count in zip(texts, places, counts, strict=True):
            buffer[place, :, :count] = entries[text, layer, :, :count]
        return EntryView(buffer=buffer, rows=torch.tensor(places), counts=torch.tensor(counts))

    def _keys(self, texts: Sequence[int], layer: int, known: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        size = (len(texts), SHAPE.kv_heads, max(known) + 5, HEAD_DIM)
        keys = torch.full(size, self.poison, dtype=torch.float64)
        for i, (text, tokens) in enumerate(zip(texts, known, strict=True)):
            keys[i, :, :tokens] = self.keys[text, layer, :, :tokens]
        return keys, torch.tensor(known)

    def new_keys(self, texts: Sequence[int], positions: Sequence[Sequence[int]], layer: int) -> torch.Tensor:
        """Keys of the queries' own tokens, [B, Hk, T, D]; poison for an inactive row."""
        at = torch.tensor(positions)
        keys = torch.stack([self.keys[text, layer, :, at[i].clamp_min(0)] for i, text in enumerate(texts)])
        return keys.masked_fill((at < 0)[:, None, :, None], self.poison)


def query_of(layer: int, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[B, T, L * Hq * D] -> [B, Hq, T, D] of one target layer."""
    batch, tokens, _ = x.shape
    return x.view(batch, tokens, SHAPE.layers, SHAPE.q_heads, HEAD_DIM)[:, :, layer].transpose(1, 2)


class Drive:
    """Runs a selector over texts as a session would, and checks every selection's lawfulness."""

    def __init__(self, selector: Selector, world: World, *, lead: int | None = None) -> None:
        self.selector, self.world = selector, world
        self.lead = selector.lead if lead is None else lead
        assert self.lead is not None
        self.bound: BoundSelector = selector.bind(shape=SHAPE, spec=world.spec)

    def prefill(
        self, text: int, tokens: int, *, chunk: int = 10**6, start: int = 0, row: int | None = None
    ) -> np.ndarray:  # fmt: skip
        """Tokens start .. tokens - 1 of one text; selections int32 [L, 1, Hk, T, budget]."""
        rows = (text if row is None else row,)
        parts = []
        for first in range(start, tokens, chunk):
            at = [list(range(first, min(first + chunk, tokens)))]
            parts.append(self._layers([text], at, rows, Phase.PREFILL))
        return np.concatenate(parts, axis=3)

    def decode(self, texts: Sequence[int], positions: Sequence[int], rows: Sequence[int] | None = None) -> np.ndarray:
        """One token a row; selections int32 [L, B, Hk, 1, budget]."""
        return self._layers(texts, [[at] for at in positions], tuple(texts if rows is None else rows), Phase.DECODE)

    def _layers(
        self, texts: Sequence[int], at: Sequence[Sequence[int]], rows: tuple[int, ...], phase: Phase
    ) -> np.ndarray:
        lead = self.lead if phase is Phase.DECODE else 0
        assert lead is not None
        chosen: dict[int, np.ndarray] = {}
        for layer in range(SHAPE.layers):
            own = self.world.view(texts, at, layer=layer, phase=phase, rows=rows)
            self.bound.observe(own, self.world.new_keys(texts, at, layer))
            if layer < lead or lead == 0:
                chosen[layer] = self._select(own, layer)
            if lead and layer + lead < SHAPE.layers:
                early = self.world.view(texts, at, layer=layer + lead, source=layer, phase=phase, rows=rows)
                chosen[layer + lead] = self._select(early, layer + lead)
        return np.stack([chosen[layer] for layer in range(SHAPE.layers)])

    def _select(self, view: LayerView, layer: int) -> np.ndarray:
        for kind in self.selector.operations(layer, view.phase, layer - view.source):
            self.bound.run(kind, view)
        assert view.selection is not None
        ids = view.selection.numpy()
        assert ids.shape == (*view.positions.shape[:1], SHAPE.kv_heads, view.positions.shape[1], view.spec.budget)
        check_selection(ids, spec=view.spec, positions=view.positions.numpy())
        return ids
