"""A toy model, block cut and token stream that tests of the trainer share."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.model import Model
from sparda_core.models.tiny import random_weights
from sparda_core.shapes import BlockSpec, ModelShape

SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=6)
SHAPE = ModelShape(
    name="toy", layers=3, hidden=24, ffn=32, q_heads=4, kv_heads=2, head_dim=8, vocab=41, context=128,
    tied_embeddings=True,
)  # fmt: skip


def toy_model(device: str = "cpu", *, biased: bool = False) -> Model:
    """Random, but with queries strong enough that attention prefers some blocks to others.

    biased  with a token bias (NOSA) that is as strong
    """
    config = DecoderConfig(shape=attrs.evolve(SHAPE, token_bias=biased))
    weights = random_weights(SHAPE, seed=3, dtype=torch.float64, config=config)
    strong = ("q_proj", "self_attn.A", "self_attn.delta")
    sharp = {name: (6 * w if any(part in name for part in strong) else w).to(device) for name, w in weights.items()}
    return Model(name="toy", decoder=Decoder(config, sharp))


def toy_config(**changes: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "spec": SPEC, "steps": 12, "window": 96, "positions": 24, "first_position": 40, "lr": 0.05, "warmup": 2,
        "teacher": "coarse",
    }  # fmt: skip
    return TrainConfig(**(options | changes))


def toy_stream(tokens: int = 500) -> torch.Tensor:
    return torch.randint(0, SHAPE.vocab, (tokens,), generator=torch.Generator().manual_seed(8))
