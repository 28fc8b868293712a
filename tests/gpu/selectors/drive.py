"""Runs the GPU half of a selector over the texts of `tests.selectors.world` as a session would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparda_core.device_view import Choice, DeviceView
from sparda_core.plan import Phase
from sparda_core.selection import check_selection
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, Selector
from tests.gpu_env import DEVICE
from tests.selectors.world import HEAD_DIM, SHAPE, World

NAN = float("nan")


class DeviceDrive:
    """One device half; places hold rows by the order of `texts` in each call. All buffers are made once."""

    def __init__(
        self, selector: Selector, world: World, *, places: int, tokens: int = 256, lead: int | None = None
    ) -> None:
        self.selector, self.world, self.unlawful = selector, world, False
        known = selector.lead if lead is None else lead
        assert known is not None
        self.lead = known
        self.room = DeviceRoom(
            shape=SHAPE, spec=world.spec, places=places, tokens=tokens, device=DEVICE, dtype=torch.float32, lead=known
        )
        self.half: DeviceSelector = selector.bind_device(self.room)
        blocks = world.spec.block_count(tokens) + 1
        # A tier's buffers are larger than the views that a step takes.
        self._scores = torch.full((places + 1, SHAPE.kv_heads, blocks + 3), NAN, device=DEVICE)
        self._blocks = torch.full((places + 1, SHAPE.kv_heads, world.spec.budget), -7, dtype=torch.int32, device=DEVICE)
        self._counts = torch.full((places + 1, SHAPE.kv_heads), -7, dtype=torch.int32, device=DEVICE)

    def adopt(self, place: int, bound: BoundSelector, row: int, tokens: int, *, text: int | None = None) -> None:
        """Hand a row over from the CPU half, which saw its first `tokens` tokens."""
        here = self.world.keys[row if text is None else text]
        self.half.adopt(place, bound, row, tokens, lambda layer: here[layer, :, :tokens])

    def decode(self, texts: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """One token a place; selections int32 [L, B, Hk, budget], checked to be lawful."""
        chosen: dict[int, np.ndarray] = {}
        for layer in range(SHAPE.layers):
            self.half.observe(self.view(texts, positions, layer=layer, source=layer))
            if layer < self.lead or self.lead == 0:
                chosen[layer] = self._select(texts, positions, layer, layer)
            if self.lead and layer + self.lead < SHAPE.layers:
                chosen[layer + self.lead] = self._select(texts, positions, layer + self.lead, layer)
        return np.stack([chosen[layer] for layer in range(SHAPE.layers)])

    def _select(self, texts: Sequence[int], positions: Sequence[int], layer: int, source: int) -> np.ndarray:
        view = self.view(texts, positions, layer=layer, source=source)
        for tensor, poison in ((view.scores, NAN), (view.choice.blocks, -7), (view.choice.counts, -7)):
            tensor.fill_(poison)
        for kind in self.selector.operations(layer, Phase.DECODE, layer - source):
            self.half.run(kind, view)
        ids = view.choice.blocks.cpu().numpy().copy()
        assert ((ids >= 0).sum(-1) == view.choice.counts.cpu().numpy()).all()
        if not self.unlawful:
            at = np.array(positions, np.int64)[:, None]
            check_selection(np.ascontiguousarray(ids[:, :, None]), spec=self.world.spec, positions=at)
        return ids

    def view(self, texts: Sequence[int], positions: Sequence[int], *, layer: int, source: int) -> DeviceView:
        """What a step shows at `positions`; a negative one is a place without a row, full of poison."""
        batch, own = len(texts), source == layer
        lead = 0 if own else 1
        position = torch.tensor(positions, dtype=torch.int32, device=DEVICE)

        def gather(values: torch.Tensor) -> torch.Tensor:
            """[texts, ..., N, D] -> [B, ..., D] of each place's token."""
            here = zip(texts, positions, strict=True)
            found = torch.stack([values[text].select(-2, max(at, 0)) for text, at in here])
            found[[i for i, at in enumerate(positions) if at < 0]] = NAN
            return found.to(DEVICE, torch.float32)

        capacity = self.world.entries.shape[3] + 2
        entries = torch.full((batch, SHAPE.kv_heads, capacity, HEAD_DIM), NAN, device=DEVICE)
        means = torch.full((batch, SHAPE.kv_heads, capacity), NAN, device=DEVICE)
        for i, (text, at) in enumerate(zip(texts, positions, strict=True)):
            count = self.world.spec.entry_count(max(0, at + 1 - lead))
            entries[i, :, :count] = self.world.entries[text, layer, :, :count].to(entries)
            means[i, :, :count] = self.world.means[text, layer, :, :count, 0].to(means)
        x = gather(self.world.x[:, source])
        return DeviceView(
            layer=layer, source=source, unseen=lead, spec=self.world.spec, position=position, x=x,
            query=_query_of(layer, x) if own else None, forecast=gather(self.world.forecasts[:, layer]),
            key=gather(self.world.keys[:, layer]) if own else None, entries=entries, query_of=_query_of,
            scores=self._scores[:batch], choice=Choice(blocks=self._blocks[:batch], counts=self._counts[:batch]),
            bias=means,
        )  # fmt: skip


def _query_of(layer: int, x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], SHAPE.layers, SHAPE.q_heads, HEAD_DIM)[:, layer]


def same_choice(got: Any, want: np.ndarray) -> None:
    """CPU selections are [L, B, Hk, 1, budget]."""
    np.testing.assert_array_equal(got, want[:, :, :, 0])
