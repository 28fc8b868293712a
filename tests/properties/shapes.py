"""Shapes that kernels must take: every value of every axis in a short table, and any mixture of them by hypothesis."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from sparda_core.shapes import BlockSpec

KV_HEADS = (1, 2, 3, 5, 6, 8)
GROUPS = (1, 2, 3, 4, 7, 12, 16, 32)
HEAD_DIMS = (32, 60, 64, 80, 96, 100, 128, 192, 256)
BLOCKS = (16, 32, 64, 128)
#: Window and stride of entries.
GRIDS = ((8, 4), (16, 8), (32, 16), (16, 4), (8, 8))
#: Names of the lengths at which something begins or ends; `tokens` says how many.
EDGES = (
    "nothing", "one", "two", "window - 1", "window", "window + 1", "block - 1", "block", "block + 1", "two blocks - 1",
    "two blocks", "two blocks + 1", "budget", "budget + 1", "beyond",
)  # fmt: skip
MOST_ROWS = 9


@attrs.frozen(kw_only=True)
class Shape:
    """One case. edges: a row each, the first of which are taken where a machine is slow."""

    kv_heads: int
    group: int
    head_dim: int
    block: int
    grid: tuple[int, int]
    edges: tuple[str, ...]
    seed: int = 0

    @property
    def spec(self) -> BlockSpec:
        """Sink 1, a band of what the window needs, two free blocks."""
        window, stride = self.grid
        local = max(1, -(-(window - 1) // self.block))
        return BlockSpec(block=self.block, window=window, stride=stride, sink=1, local=local, budget=local + 4)

    @property
    def tokens(self) -> list[int]:
        """Tokens of each row; 0 is a row without any."""
        window, block, full = self.grid[0], self.block, self.block * self.spec.budget
        lengths = (
            0, 1, 2, window - 1, window, window + 1, block - 1, block, block + 1, 2 * block - 1, 2 * block,
            2 * block + 1, full, full + 1, full + 2 * block + 3,
        )  # fmt: skip
        return [lengths[EDGES.index(edge)] for edge in self.edges]

    def __str__(self) -> str:
        return f"{self.kv_heads}x{self.group}x{self.head_dim}-block{self.block}-grid{self.grid[0]}/{self.grid[1]}"


def _row(i: int) -> Shape:
    """Axes are walked at different paces, so that no two go together throughout."""
    edges = tuple(EDGES[(4 * i + 7 * j) % len(EDGES)] for j in range(1 + (4 + i) % MOST_ROWS))
    return Shape(
        kv_heads=KV_HEADS[i % 6], group=GROUPS[(3 * i + 1) % 8], head_dim=HEAD_DIMS[(2 * i) % 9],
        block=BLOCKS[(i + i // 4) % 4], grid=GRIDS[(2 * i) % 5], edges=edges, seed=i,
    )  # fmt: skip


TABLE = tuple(_row(i) for i in range(9))


def shapes() -> st.SearchStrategy[Shape]:
    """Any mixture; the order of values is the order in which they are made smaller."""
    return st.builds(
        Shape, kv_heads=st.sampled_from(KV_HEADS), group=st.sampled_from(GROUPS), head_dim=st.sampled_from(HEAD_DIMS),
        block=st.sampled_from(BLOCKS), grid=st.sampled_from(GRIDS),
        edges=st.lists(st.sampled_from(EDGES), min_size=1, max_size=MOST_ROWS).map(tuple), seed=st.integers(0, 2**16),
    )  # fmt: skip
