"""A model small enough to hold in the hand: random keys and queries, and views of them.

`x` of a layer carries one query per target layer, so that `query_of` only has to cut it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from sparda_core.layer_view import EntryView, LayerView
from sparda_core.plan import Phase
from sparda_core.shapes import BlockSpec, ModelShape

#: Sizes where nobody asks for others.
HELD_SHAPE = ModelShape(
    name="held", layers=3, hidden=24, ffn=32, q_heads=6, kv_heads=2, head_dim=8, vocab=11, context=4096
)  # fmt: skip
HELD_SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
#: What a World holds of every token, each with the axis of its tokens.
_BY_TOKEN = (("keys", 3), ("x", 2), ("forecasts", 3), ("biases", 3))


@attrs.define
class World:
    """Texts of the same length, known in full from the start; a view shows a part of them.

    keys       [texts, L, Hk, N, D]
    x          [texts, L, N, L * Hq * D]
    forecasts  [texts, L, Hk, N, D], the Forecast for each layer
    biases     [texts, L, Hk, N, 1], the token bias
    poison     what lies in memory beyond what a view may show
    entries    [texts, L, Hk, C, D], means of every full window of keys
    means      [texts, L, Hk, C, 1], those of the token bias
    """

    keys: torch.Tensor
    x: torch.Tensor
    forecasts: torch.Tensor
    biases: torch.Tensor
    spec: BlockSpec = HELD_SPEC
    poison: float = float("nan")
    shape: ModelShape = HELD_SHAPE
    entries: torch.Tensor = attrs.field(init=False)
    means: torch.Tensor = attrs.field(init=False)

    @entries.default
    def _every_entry(self) -> torch.Tensor:
        return _windows(self.keys, self.spec)

    @means.default
    def _every_mean(self) -> torch.Tensor:
        return _windows(self.biases, self.spec)

    @classmethod
    def random(
        cls, *, texts: int = 3, tokens: int = 200, seed: int = 0, shape: ModelShape = HELD_SHAPE, **given: Any
    ) -> World:
        """Normal values, float64, the same for the same seed."""
        source = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=source, dtype=torch.float64)

        layers, heads = shape.layers, shape.kv_heads
        return cls(
            keys=draw(texts, layers, heads, tokens, shape.head_dim),
            x=draw(texts, layers, tokens, layers * shape.q_heads * shape.head_dim),
            forecasts=draw(texts, layers, heads, tokens, shape.head_dim),
            biases=draw(texts, layers, heads, tokens, 1), shape=shape, **given,
        )  # fmt: skip

    def splice(self, first: int, then: int, at: int) -> int:
        """A new text: `first` up to token `at`, then `then`."""
        for name, axis in _BY_TOKEN:
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
            positions=at, x=x, query=self.query_of(layer, x, at) if source == layer else None, forecast=forecast,
            entries=self._entries(self.entries, texts, layer, known), query_of=self.query_of,
            keys=lambda: self._keys(texts, layer, known), bias=self._entries(self.means, texts, layer, known),
        )  # fmt: skip

    def _entries(self, entries: torch.Tensor, texts: Sequence[int], layer: int, known: Sequence[int]) -> EntryView:
        counts = [self.spec.entry_count(tokens) for tokens in known]
        places = [2 * (len(texts) - 1 - i) for i in range(len(texts))]  # neither in order nor side by side
        size = (2 * len(texts), self.shape.kv_heads, max(counts) + 3, entries.shape[-1])
        buffer = torch.full(size, self.poison, dtype=torch.float64)
        for text, place, count in zip(texts, places, counts, strict=True):
            buffer[place, :, :count] = entries[text, layer, :, :count]
        return EntryView(buffer=buffer, rows=torch.tensor(places), counts=torch.tensor(counts))

    def _keys(self, texts: Sequence[int], layer: int, known: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        size = (len(texts), self.shape.kv_heads, max(known) + 5, self.shape.head_dim)
        keys = torch.full(size, self.poison, dtype=torch.float64)
        for i, (text, tokens) in enumerate(zip(texts, known, strict=True)):
            keys[i, :, :tokens] = self.keys[text, layer, :, :tokens]
        return keys, torch.tensor(known)

    def new_keys(self, texts: Sequence[int], positions: Sequence[Sequence[int]], layer: int) -> torch.Tensor:
        """Keys of the queries' own tokens, [B, Hk, T, D]; poison for an inactive row."""
        at = torch.tensor(positions)
        keys = torch.stack([self.keys[text, layer, :, at[i].clamp_min(0)] for i, text in enumerate(texts)])
        return keys.masked_fill((at < 0)[:, None, :, None], self.poison)

    def query_of(self, layer: int, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[B, T, L * Hq * D] -> [B, Hq, T, D] of one target layer."""
        batch, tokens, _ = x.shape
        cut = x.view(batch, tokens, self.shape.layers, self.shape.q_heads, self.shape.head_dim)
        return cut[:, :, layer].transpose(1, 2)


def _windows(values: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Means of every full window along the tokens (axis 3)."""
    if values.shape[3] < spec.window:
        return values[:, :, :, :0]
    return values.unfold(3, spec.window, spec.stride).mean(-1)
