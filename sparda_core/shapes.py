"""Model shape and block spec: the numbers that every other part derives from."""

from __future__ import annotations

from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError

#: Sizes and counts stay below this: block ids are 32-bit numbers.
LIMIT = 2**31


def check_integer(name: str, value: object, bound: int) -> None:
    """Raise ConfigError unless `value` is an integer >= bound and below LIMIT."""
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigError(f"{name}={value!r} must be an integer >= {bound}")
    if value >= LIMIT:
        raise ConfigError(f"{name}={value} must be < 2**31")


def _at_least(bound: int) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: int) -> None:
        check_integer(attribute.name, value, bound)

    return check


@attrs.frozen(kw_only=True)
class ModelShape:
    """Sizes of a decoder. Counts are per model, `head_dim` in values.

    token_bias  whether every token has a learned bias per layer and KV head, which attention adds to its logits (NOSA)
    qkv_bias    whether the query, key and value projections have a bias (Qwen2)
    qk_norm     whether each query and key head has an RMSNorm before its rotation (Qwen3)
    """

    name: str
    layers: int = attrs.field(validator=_at_least(1))
    hidden: int = attrs.field(validator=_at_least(1))
    ffn: int = attrs.field(validator=_at_least(1))
    q_heads: int = attrs.field(validator=_at_least(1))
    kv_heads: int = attrs.field(validator=_at_least(1))
    head_dim: int = attrs.field(validator=_at_least(2))
    vocab: int = attrs.field(validator=_at_least(1))
    context: int = attrs.field(validator=_at_least(1))
    tied_embeddings: bool = False
    token_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @head_dim.validator
    def _even(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value % 2:
            raise ConfigError(f"head_dim={value} must be even: rotary embedding pairs its halves")

    def __attrs_post_init__(self) -> None:
        if self.q_heads % self.kv_heads:
            raise ConfigError(
                f"q_heads={self.q_heads} must be a multiple of kv_heads={self.kv_heads}: "
                "every KV head serves the same number of query heads"
            )

    @property
    def group(self) -> int:
        """Query heads per KV head, G."""
        return self.q_heads // self.kv_heads

    @property
    def layer_weights(self) -> int:
        """Matrix weights of one layer: q, k, v, output, and the gated feed-forward's three."""
        heads = (2 * self.q_heads + 2 * self.kv_heads) * self.head_dim
        return self.hidden * (heads + 3 * self.ffn)

    @property
    def forecast_weights(self) -> int:
        """Weights of one Forecast projection, hidden x (Hk * D) (SparDA, section 3)."""
        return self.hidden * self.kv_heads * self.head_dim

    @property
    def weights(self) -> int:
        """All matrix weights, embeddings counted once when tied; norms, biases and the token bias's few left out."""
        tables = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_weights + tables * self.vocab * self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """K and V values that one token adds, over all layers and KV heads."""
        return self.layers * 2 * self.kv_heads * self.head_dim


@attrs.frozen(kw_only=True)
class BlockSpec:
    """How a KV cache is cut into blocks and entries, and which blocks are always attended.

    block    tokens per block
    window   tokens averaged into one entry (compressed key), post-RoPE
    stride   tokens between the starts of two entries; as many as `window` where entries do not overlap
    sink     first blocks, always attended
    local    blocks before the current one that are always attended; the current one too, so the
             band holds local + 1
    budget   total blocks attended per KV head, forced ones included
    """

    block: int = attrs.field(default=64, validator=_at_least(1))
    window: int = attrs.field(default=32, validator=_at_least(1))
    stride: int = attrs.field(default=16, validator=_at_least(1))
    sink: int = attrs.field(default=1, validator=_at_least(0))
    local: int = attrs.field(default=3, validator=_at_least(0))
    budget: int = attrs.field(default=16, validator=_at_least(1))

    def __attrs_post_init__(self) -> None:
        for name in ("block", "window"):
            value = getattr(self, name)
            if value % self.stride:
                raise ConfigError(f"{name}={value} must be a multiple of stride={self.stride}")
        need = -(-(self.window - 1) // self.block)
        if self.local < need:
            raise ConfigError(
                f"local={self.local} must be >= {need} for window={self.window}, block={self.block}: "
                "a selector that looks one layer ahead has not seen the newest entry, "
                "so every block that entry touches must be forced"
            )
        if self.budget < self.forced:
            raise ConfigError(
                f"budget={self.budget} must be >= {self.forced} "
                f"(sink={self.sink} + local={self.local} + the current block): raise budget, or lower sink or local"
            )

    @property
    def forced(self) -> int:
        """Most blocks the sink and the local band can take: sink + local + 1."""
        return self.sink + self.local + 1

    @property
    def free(self) -> int:
        """Blocks left to a selector's choice."""
        return self.budget - self.forced

    @property
    def entries_per_block(self) -> int:
        """Entries that start inside one block, R."""
        return self.block // self.stride

    @property
    def pool_width(self) -> int:
        """Entries pooled into one block's score, those that touch it: R of its own and the `spill` before them."""
        return self.entries_per_block + self.spill

    @property
    def spill(self) -> int:
        """Entries that start before a block and reach into it: 1 where a window is two strides, 0 without overlap."""
        return self.window // self.stride - 1

    def entry_count(self, tokens: int) -> int:
        """Full windows in `tokens` tokens: 0 below `window`, else (tokens - window) // stride + 1."""
        return 0 if tokens < self.window else (tokens - self.window) // self.stride + 1

    def block_count(self, tokens: int) -> int:
        """Blocks, the last one perhaps partial, that hold `tokens` tokens."""
        return -(-tokens // self.block)

    def forced_blocks(self, position: int) -> tuple[int, ...]:
        """Logical ids, ascending, always attended by the query at absolute `position`."""
        current = position // self.block
        first_local = max(0, current - self.local)
        sink = range(min(self.sink, first_local))
        return (*sink, *range(first_local, current + 1))

    def with_budget(self, budget: int) -> BlockSpec:
        """The same cut with another budget; raises ConfigError below the forced blocks."""
        return attrs.evolve(self, budget=budget)


SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="smollm2-135m", layers=30, hidden=576, ffn=1536, q_heads=9, kv_heads=3, head_dim=64,
            vocab=49152, context=8192, tied_embeddings=True,
        ),
        ModelShape(
            name="minicpm4.1-8b", layers=32, hidden=4096, ffn=16384, q_heads=32, kv_heads=2, head_dim=128,
            vocab=73448, context=65536,
        ),
        ModelShape(
            name="nosa-8b", layers=32, hidden=4096, ffn=16384, q_heads=32, kv_heads=2, head_dim=128,
            vocab=73448, context=32768, token_bias=True,
        ),
    )
}  # fmt: skip


def named_shape(name: str) -> ModelShape:
    """A shape by name; raises UnknownNameError with the nearest known name."""
    if name not in SHAPES:
        raise UnknownNameError(what="shape", name=name, known=SHAPES)
    return SHAPES[name]
