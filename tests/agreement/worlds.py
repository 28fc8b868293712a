"""Small models and combinations that the agreement tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core.compose import Combination, compose
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(
    name="agreement", layers=4, hidden=24, ffn=32, q_heads=6, kv_heads=2, head_dim=4, vocab=23, context=4096
)
SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)
MODEL = tiny_model(SHAPE, seed=1, dtype=torch.float64, forecast=True)
#: The same with a token bias, for the selectors that ask for one.
BIASED_SHAPE = attrs.evolve(SHAPE, token_bias=True)
BIASED = tiny_model(BIASED_SHAPE, seed=1, dtype=torch.float64, forecast=True)
#: Options that a selector cannot do without on so small a model.
OPTIONS: dict[str, dict[str, Any]] = {
    "infinigen": {"channels": 2}, "nosa": {"select_blocks": 2}, "nosa-forecast": {"select_blocks": 2},
}  # fmt: skip
#: No phrase comes twice: the first layer's token bias depends on tokens alone, and equal ones would differ by rounding.
TOKENS = np.random.default_rng(5).integers(SHAPE.vocab, size=200).tolist()


def shape_of(selector: str) -> ModelShape:
    """The shape of models that a selector is tried on."""
    return BIASED_SHAPE if selector in ("nosa", "nosa-forecast") else SHAPE


def pair(
    selector: str, runtime: str, *, recording: Path | None = None, runtime_options: dict[str, Any] | None = None,
    **session: Any,
) -> Combination:  # fmt: skip
    """A combination of MODEL (for `nosa` and its like: BIASED); `dense` gets a budget for everything, `replay` its
    recording.
    """
    options = dict(OPTIONS.get(selector, {}))
    if selector == "replay":
        options["path"] = recording
    spec = attrs.evolve(SPEC, budget=40) if selector == "dense" else SPEC
    return compose(
        BIASED if shape_of(selector).token_bias else MODEL,
        selector, runtime, spec=spec, selector_options=options, runtime_options=runtime_options, page_blocks=2,
        **session,
    )  # fmt: skip
