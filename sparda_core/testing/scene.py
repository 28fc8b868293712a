"""Scene: the sizes, lengths and seed of one example that a selector is tried in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.testing.tools import needed

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_SMALL = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)


@attrs.frozen(kw_only=True)
class Scene:
    """Rows that read a prompt each and then decode together; everything in them follows from the seed.

    layers, kv_heads, group, head_dim  of the model
    spec    how its cache is cut
    tokens  prompt tokens of each row, at least one row
    steps   decode steps after the prompts
    chunk   tokens of a chunk, where a prompt is read in chunks
    lead    of selectors that take any
    seed    of the values
    """

    layers: int = 2
    kv_heads: int = 1
    group: int = 1
    head_dim: int = 8
    spec: BlockSpec = _SMALL
    tokens: tuple[int, ...] = (100,)
    steps: int = 1
    chunk: int = 1
    lead: int = 0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.tokens:
            raise ConfigError("tokens=() must name the prompt tokens of at least one row")
        for name, value in (("tokens", min(self.tokens)), ("steps", self.steps), ("chunk", self.chunk)):
            check_integer(name, value, 1)

    @property
    def last(self) -> int:
        """Tokens of the longest row at the end."""
        return max(self.tokens) + self.steps

    def shape(self, *, token_bias: bool) -> ModelShape:
        """The model's shape; as wide as the queries of all its layers, which a World puts into `x`."""
        heads = self.kv_heads * self.group
        return ModelShape(
            name="scene", layers=self.layers, hidden=self.layers * heads * self.head_dim, ffn=16, q_heads=heads,
            kv_heads=self.kv_heads, head_dim=self.head_dim, vocab=23, context=4096, token_bias=token_bias,
        )  # fmt: skip


def scenes() -> SearchStrategy[Scene]:
    """Scenes drawn by hypothesis; edges of blocks, windows and the forced band among the lengths."""
    st = needed("hypothesis").strategies

    def of_spec(spec: BlockSpec) -> SearchStrategy[Scene]:
        full = spec.block * spec.budget
        edges = [edge + shift for edge in (spec.window, spec.block, full, full + spec.block) for shift in (-1, 0, 1)]
        # Half of the rows and more hold blocks that the budget has no room for: only there is anything chosen.
        length = st.one_of(
            st.integers(1, full + 5 * spec.block), st.integers(full + 1, full + 5 * spec.block),
            st.sampled_from([n for n in edges if n > 0]),
        )  # fmt: skip
        drawn: SearchStrategy[Scene] = st.builds(
            Scene, layers=st.integers(2, 3), kv_heads=st.integers(1, 3), group=st.sampled_from([1, 2, 3, 7]),
            head_dim=st.sampled_from([8, 2, 12, 20]), spec=st.just(spec),
            tokens=st.integers(1, 3).flatmap(lambda rows: st.tuples(*[length] * rows)), steps=st.integers(1, 3),
            chunk=st.integers(1, 2 * spec.block), lead=st.integers(0, 1), seed=st.integers(0, 2**16),
        )  # fmt: skip
        return drawn

    found: SearchStrategy[Scene] = _specs().flatmap(of_spec)
    return found


def _specs() -> SearchStrategy[BlockSpec]:
    """Cuts with blocks of 4 to 24 tokens; entries that overlap, touch, and reach over blocks."""
    st = needed("hypothesis").strategies

    def made(stride: int, per_block: int, per_window: int, sink: int, wider: int, free: int) -> BlockSpec:
        block, window = stride * per_block, stride * per_window
        local = wider + -(-(window - 1) // block)
        return BlockSpec(
            block=block, window=window, stride=stride, sink=sink, local=local, budget=sink + local + 1 + free
        )

    drawn: SearchStrategy[BlockSpec] = st.builds(
        made, stride=st.sampled_from([4, 2, 8]), per_block=st.integers(2, 3), per_window=st.integers(1, 3),
        sink=st.integers(0, 2), wider=st.integers(0, 1), free=st.sampled_from([1, 0, 2, 3, 4]),
    )  # fmt: skip
    return drawn
