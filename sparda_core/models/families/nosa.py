"""NOSA (arXiv 2510.13602): a Llama whose layers give every token a bias, and a sparse_config that names its blocks.

Its checkpoints call themselves a Llama, so what tells them apart is that the bias's tensors are there. Not in the
transformers package: names and rules are those of the code that is published with the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from sparda_core.errors import WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.families.minicpm import read_block_spec
from sparda_core.models.families.settings import Settings
from sparda_core.models.token_bias import bias_keys
from sparda_core.shapes import BlockSpec


def is_nosa(names: Iterable[str]) -> bool:
    """Whether tensors of these names give tokens a bias."""
    return bias_keys(0)[0] in set(names)


def nosa(plain: DecoderConfig, settings: Settings) -> DecoderConfig:
    """A Llama's constants with a token bias; its blocks are those of `sparse_config`, by default a window of 1,024.

    Of these, sink + local + `select_blocks` (by default 24) go by the query, the others by their tokens' bias.
    raises  WeightsError for an attention that adds no bias, or blocks that cannot be cut
    """
    settings.must_be("model_type", "llama", why="only of a Llama is a token bias (self_attn.A) known")
    sparse = settings.section("sparse_config")
    if sparse is not None:
        sparse.must_be("force_dense_inference", False, why="the bias is the model's own and always added here")
    shape = attrs.evolve(plain.shape, token_bias=True)
    spec = read_block_spec(settings, default_window=1024, default_topk=80)
    return attrs.evolve(plain, shape=shape, block_spec=spec, select_blocks=_select_blocks(sparse, spec))


def _select_blocks(sparse: Settings | None, spec: BlockSpec | None) -> int | None:
    if sparse is None or spec is None:
        return None
    count: int = sparse.integer("select_blocks", 24)
    most = spec.budget - spec.sink - spec.local
    if not 1 <= count <= most:
        raise WeightsError(
            f"{sparse.source}: select_blocks={count} must be between 1 and {most}, the blocks that init_blocks, "
            "window_size and topk leave"
        )
    return count
