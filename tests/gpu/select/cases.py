"""Inputs of the selection tests. Import tests.gpu_env before this module."""

from __future__ import annotations

import attrs
import torch
from hypothesis import strategies as st

from sparda_core.device_view import Choice
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

INF, NAN = float("inf"), float("nan")
#: What integer outputs hold before a kernel writes them.
UNWRITTEN = -77

seeds = st.integers(0, 2**31 - 1)


def generator(seed: int) -> torch.Generator:
    """A stream of its own."""
    return torch.Generator().manual_seed(seed)


@st.composite
def specs(draw: st.DrawFn) -> BlockSpec:
    """Lawful cuts with small blocks."""
    sink, local, free = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 9))
    budget = sink + local + 1 + free
    return BlockSpec(
        block=draw(st.sampled_from([16, 24])), window=8, stride=8, sink=sink, local=local, budget=budget
    )


def positions_of(spec: BlockSpec, *, places: int, blocks: int = 40) -> st.SearchStrategy[torch.Tensor]:
    """int64 [places]: inactive, first token, edges of blocks, anything."""
    at = st.integers(-1, blocks * spec.block)
    edge = st.integers(0, blocks).map(lambda n: n * spec.block)
    return st.lists(at | edge | st.sampled_from([-1, 0]), min_size=places, max_size=places).map(torch.tensor)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values on the device, as a view whose leading strides exceed its shape, poison around it."""
    room = torch.full([size + 1 for size in tensor.shape], _poison(tensor.dtype), dtype=tensor.dtype, device=DEVICE)
    view = room[tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def unwritten(*shape: int) -> torch.Tensor:
    """int32 view that no kernel has written."""
    return strided(torch.full(shape, UNWRITTEN, dtype=torch.int32))


def empty_choice(places: int, heads: int, budget: int) -> Choice:
    """A selection that nobody made yet."""
    return Choice(blocks=unwritten(places, heads, budget), counts=unwritten(places, heads))


def _poison(dtype: torch.dtype) -> float:
    return NAN if dtype.is_floating_point else UNWRITTEN


@attrs.frozen(kw_only=True, eq=False)
class World:
    """Everything a diff of one layer works on, as strided views, unwritten outputs included."""

    spec: BlockSpec
    position: torch.Tensor
    tick: torch.Tensor
    choice: Choice
    slots: DeviceSlots
    host: Paged
    diff: DeviceDiff

    @classmethod
    def of(cls, spec: BlockSpec, *, places: int, heads: int, slots: int, blocks: int, seed: int = 0) -> World:
        """Empty slots; pages of 4 blocks in any order."""
        pages = -(-blocks // 4)
        table = torch.randperm(places * heads * pages, generator=generator(seed)).reshape(places, heads, pages).int()
        no_data = torch.empty(0, 2, spec.block, 4, device=DEVICE)
        return cls(
            spec=spec, position=unwritten(places), tick=unwritten(1), choice=empty_choice(places, heads, spec.budget),
            slots=DeviceSlots(
                array=no_data, held=filled(-1, places, heads, slots), used=filled(0, places, heads, slots),
                where=filled(-1, places, heads, blocks),
            ),
            host=Paged(array=no_data, table=strided(table), page_blocks=4),
            diff=DeviceDiff(
                physical=unwritten(places, heads, spec.budget), tail=unwritten(places, heads),
                source=unwritten(places * heads * spec.budget), target=unwritten(places * heads * spec.budget),
                count=unwritten(1), misses=unwritten(places, heads), opened=unwritten(places, heads),
            ),
        )  # fmt: skip

    def start(self, position: torch.Tensor, tick: int) -> None:
        """Begin a step: all that it writes is unwritten again, the list empty."""
        for tensor in (self.choice.blocks, self.choice.counts, *attrs.astuple(self.diff, recurse=False)):
            tensor.fill_(UNWRITTEN)
        self.position.copy_(position)
        self.tick.fill_(tick)
        self.diff.count.zero_()

    def scores(self, scores: torch.Tensor) -> torch.Tensor:
        """These scores, with poison behind each row's current block."""
        behind = torch.arange(scores.shape[2]) > (self.position.cpu() // self.spec.block)[:, None, None]
        return strided(torch.where(behind, 1e30, scores))


def filled(value: int, *shape: int) -> torch.Tensor:
    """int32 view of one value."""
    return strided(torch.full(shape, value, dtype=torch.int32))
