"""Small models and combinations that the agreement tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.compose import Combination, compose
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(
    name="agreement", layers=4, hidden=24, ffn=32, q_heads=6, kv_heads=2, head_dim=4, vocab=23, context=4096
)
SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)
MODEL = tiny_model(SHAPE, seed=1, dtype=torch.float64, forecast=True)
#: Options that a selector cannot do without on so small a model.
OPTIONS: dict[str, dict[str, Any]] = {"infinigen": {"channels": 2}}
TOKENS = [(7 * i * i + 3 * i) % SHAPE.vocab for i in range(200)]


def pair(
    selector: str, runtime: str, *, recording: Path | None = None, runtime_options: dict[str, Any] | None = None,
    **session: Any,
) -> Combination:  # fmt: skip
    """A combination of MODEL; `dense` gets a budget for everything, `replay` its recording."""
    options = dict(OPTIONS.get(selector, {}))
    if selector == "replay":
        options["path"] = recording
    spec = attrs.evolve(SPEC, budget=40) if selector == "dense" else SPEC
    return compose(
        MODEL, selector, runtime, spec=spec, selector_options=options, runtime_options=runtime_options, page_blocks=2,
        **session,
    )  # fmt: skip
