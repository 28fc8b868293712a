"""DeviceDrive: runs the GPU half of a selector over the texts of a World as a session would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.device_view import Choice, DeviceView
from sparda_core.plan import Phase
from sparda_core.selection import check_selection
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, Selector
from sparda_core.testing.world import World

_NAN = float("nan")
#: What an id or a count is before a kernel wrote it.
_STALE = -7
Ids = npt.NDArray[np.int32]


class DeviceDrive:
    """One device half; places hold rows by the order of `texts` in each call. All buffers are made once."""

    def __init__(
        self, selector: Selector, world: World, *, places: int, device: torch.device, tokens: int = 256,
        lead: int | None = None,
    ) -> None:  # fmt: skip
        known = selector.lead if lead is None else lead
        assert known is not None, "give the lead of a selector that takes any"
        self.selector, self.world, self.lead, self.unlawful = selector, world, known, False
        self.room = DeviceRoom(
            shape=world.shape, spec=world.spec, places=places, tokens=tokens, device=device, dtype=torch.float32,
            lead=known,
        )  # fmt: skip
        self.half: DeviceSelector = selector.bind_device(self.room)
        heads, blocks = world.shape.kv_heads, world.spec.block_count(tokens) + 1
        # A tier's buffers are larger than the views that a step takes.
        self._scores = torch.full((places + 1, heads, blocks + 3), _NAN, device=device)
        self._blocks = torch.full((places + 1, heads, world.spec.budget), _STALE, dtype=torch.int32, device=device)
        self._counts = torch.full((places + 1, heads), _STALE, dtype=torch.int32, device=device)

    def adopt(self, place: int, bound: BoundSelector, row: int, tokens: int, *, text: int | None = None) -> None:
        """Hand a row over from the CPU half, which saw its first `tokens` tokens."""
        here = self.world.keys[row if text is None else text]
        self.half.adopt(place, bound, row, tokens, lambda layer: here[layer, :, :tokens])

    def decode(self, texts: Sequence[int], positions: Sequence[int]) -> Ids:
        """One token a place; selections int32 [L, B, Hk, budget], checked to be lawful."""
        layers = self.world.shape.layers
        chosen: dict[int, Ids] = {}
        for layer in range(layers):
            self.half.observe(self.view(texts, positions, layer=layer, source=layer))
            if layer < self.lead or self.lead == 0:
                chosen[layer] = self._select(texts, positions, layer, layer)
            if self.lead and layer + self.lead < layers:
                chosen[layer + self.lead] = self._select(texts, positions, layer + self.lead, layer)
        return np.stack([chosen[layer] for layer in range(layers)])

    def _select(self, texts: Sequence[int], positions: Sequence[int], layer: int, source: int) -> Ids:
        view = self.view(texts, positions, layer=layer, source=source)
        for tensor, poison in ((view.scores, _NAN), (view.choice.blocks, _STALE), (view.choice.counts, _STALE)):
            tensor.fill_(poison)
        for kind in self.selector.operations(layer, Phase.DECODE, layer - source):
            self.half.run(kind, view)
        ids: Ids = view.choice.blocks.cpu().numpy().copy()
        assert ((ids >= 0).sum(-1) == view.choice.counts.cpu().numpy()).all(), "counts are not those of the blocks"
        if not self.unlawful:
            at = np.array(positions, np.int64)[:, None]
            check_selection(np.ascontiguousarray(ids[:, :, None]), spec=self.world.spec, positions=at)
        return ids

    def view(self, texts: Sequence[int], positions: Sequence[int], *, layer: int, source: int) -> DeviceView:
        """What a step shows at `positions`; a negative one is a place without a row, full of poison."""
        own, world, device = source == layer, self.world, self.room.device
        lead = 0 if own else 1
        gather = self._gather_of(texts, positions)
        entries, means = self._entries(texts, positions, layer, lead)
        x = gather(world.x[:, source])
        return DeviceView(
            layer=layer, source=source, unseen=lead, spec=world.spec,
            position=torch.tensor(positions, dtype=torch.int32, device=device), x=x,
            query=self.query_of(layer, x) if own else None, forecast=gather(world.forecasts[:, layer]),
            key=gather(world.keys[:, layer]) if own else None, entries=entries, query_of=self.query_of,
            scores=self._scores[: len(texts)],
            choice=Choice(blocks=self._blocks[: len(texts)], counts=self._counts[: len(texts)]), bias=means,
        )  # fmt: skip

    def _gather_of(self, texts: Sequence[int], positions: Sequence[int]) -> Callable[[torch.Tensor], torch.Tensor]:
        def gather(values: torch.Tensor) -> torch.Tensor:
            """[texts, ..., N, D] -> [B, ..., D] of each place's token."""
            here = zip(texts, positions, strict=True)
            found = torch.stack([values[text].select(-2, max(at, 0)) for text, at in here])
            found[[i for i, at in enumerate(positions) if at < 0]] = _NAN
            return found.to(self.room.device, torch.float32)

        return gather

    def _entries(
        self, texts: Sequence[int], positions: Sequence[int], layer: int, lead: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        world = self.world
        capacity = min(world.entries.shape[3] + 2, world.spec.entry_count(self.room.tokens))
        size = (len(texts), world.shape.kv_heads, capacity)
        entries = torch.full((*size, world.shape.head_dim), _NAN, device=self.room.device)
        means = torch.full(size, _NAN, device=self.room.device)
        for i, (text, at) in enumerate(zip(texts, positions, strict=True)):
            count = world.spec.entry_count(max(0, at + 1 - lead))
            entries[i, :, :count] = world.entries[text, layer, :, :count].to(entries)
            means[i, :, :count] = world.means[text, layer, :, :count, 0].to(means)
        return entries, means

    def query_of(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """[B, L * Hq * D] -> [B, Hq, D] of one target layer."""
        shape = self.world.shape
        return x.view(x.shape[0], shape.layers, shape.q_heads, shape.head_dim)[:, layer]
