"""Inputs of the selection tests. Import tests.gpu_env before this module."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from sparda_core.device_view import Choice
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
    return BlockSpec(
        block=draw(st.sampled_from([16, 24])), window=8, stride=8, sink=sink, local=local, budget=sink + local + 1 + free
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
