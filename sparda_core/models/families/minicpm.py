"""MiniCPM4 and 4.1: a Llama with muP scalings, LongRoPE, and a sparse_config that names its blocks.

Not in the transformers package: the rules are those of the code that is published with the checkpoints.
"""

from __future__ import annotations

import math

import attrs

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.families.llama import read_common, refuse_foreign_parts
from sparda_core.models.families.rope import read_factors, read_rope
from sparda_core.models.families.settings import Settings
from sparda_core.models.rope_scaling import Llama3Scaling, LongRopeScaling, RopeScaling, YarnScaling
from sparda_core.shapes import BlockSpec


def minicpm(settings: Settings) -> DecoderConfig:
    """Embedding times scale_emb, each branch times scale_depth / sqrt(layers), logits times dim_model_base / hidden."""
    refuse_foreign_parts(settings)
    plain = read_common(settings, tied=True, rope=_rope(settings))
    base = settings.number("dim_model_base", 1.0)
    try:
        return attrs.evolve(
            plain,
            embed_scale=settings.number("scale_emb", 1.0),
            residual_scale=settings.number("scale_depth", 1.0) / math.sqrt(plain.shape.layers),
            logit_scale=base / plain.shape.hidden,
            block_spec=read_block_spec(settings, default_window=2048, default_topk=64),
        )
    except ConfigError as error:
        raise WeightsError(f"{settings.source}: {error}") from error


def read_block_spec(settings: Settings, *, default_window: int, default_topk: int) -> BlockSpec | None:
    """The blocks of `sparse_config`; None where there is none.

    Its `topk` leaves the local window out; our budget counts it: topk + window_size / block_size. `dense_len`, below
    which that code attends densely, is not kept: here a text is attended whole while it has no more than `budget`
    blocks, and for the published numbers (6,144 tokens against a `dense_len` of 8,192) that is sooner over.
    raises  WeightsError for a window that is no whole number of blocks, or compressed keys without positions
    """
    sparse = settings.section("sparse_config")
    if sparse is None:
        return None
    sparse.must_be("use_nope", False, why="entries are means of keys with positions")
    block, window = sparse.integer("block_size", 64), sparse.integer("window_size", default_window)
    if block < 1 or window % block:
        raise WeightsError(f"{sparse.source}: window_size={window} must be a multiple of block_size={block}")
    local = window // block
    try:
        return BlockSpec(
            block=block, window=sparse.integer("kernel_size", 32), stride=sparse.integer("kernel_stride", 16),
            sink=sparse.integer("init_blocks", 1), local=local, budget=sparse.integer("topk", default_topk) + local,
        )  # fmt: skip
    except (ArithmeticError, ConfigError) as error:
        raise WeightsError(f"{sparse.source}: {error}") from error


def _rope(settings: Settings) -> tuple[float, RopeScaling | None]:
    """LongRoPE by MiniCPM's own rule: a context beyond the original one always takes the long list."""
    theta, scaling = read_rope(settings)
    if isinstance(scaling, Llama3Scaling | YarnScaling):
        raise WeightsError(
            f"{settings.source}: rope_type of a MiniCPM must be default, linear, dynamic or longrope: its own code has "
            "no other"
        )
    if not isinstance(scaling, LongRopeScaling):
        return theta, scaling
    context, original = settings.integer("max_position_embeddings"), scaling.original
    if not 1 < original <= context:
        raise WeightsError(
            f"{settings.source}: original_max_position_embeddings={original} must be between 2 and "
            f"max_position_embeddings={context}"
        )
    rope = settings.section("rope_parameters") or settings.section("rope_scaling")
    assert rope is not None
    short, long = read_factors(rope)
    magnitude = math.sqrt(1 + math.log(context / original) / math.log(original))
    return theta, LongRopeScaling(
        short=short, long=long, original=original, attention=magnitude, always_long=context > original
    )
