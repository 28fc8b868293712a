"""A tiny float64 model, methods of every kind and a window, for tests of the study."""

from __future__ import annotations

import attrs
import torch

from sparda_core.evaluate.study.config import StudyConfig
from sparda_core.evaluate.study.methods import DEFAULT, Method, parse_methods
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights
from sparda_core.models.tiny import random_forecast, random_weights
from sparda_core.shapes import BlockSpec, ModelShape

SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=6)
SHAPE = ModelShape(
    name="study", layers=3, hidden=24, ffn=32, q_heads=4, kv_heads=2, head_dim=8, vocab=61, context=256,
    tied_embeddings=True,
)  # fmt: skip
GRIDS = {"a.s0": (4, 2), "a.s1": (4, 2), "two": (4, 2)}  # the last knows two layers early
NAMES = (
    *DEFAULT, "query@8/8", "query@1/1", "forecast:a.s0@2/2", "infinigen-softmax@8/4",
)  # fmt: skip
TOKENS, FIRST = 150, 90


def decoder(*, biased: bool = False) -> Decoder:
    """Random, but with queries strong enough that attention prefers some blocks to others.

    biased  with a token bias, large enough to change what is attended to
    """
    config = DecoderConfig(shape=attrs.evolve(SHAPE, token_bias=biased))
    weights = random_weights(SHAPE, seed=3, dtype=torch.float64, config=config)
    strong = ("q_proj", ".self_attn.A", ".self_attn.delta")
    sharp = {name: 5 * w if any(part in name for part in strong) else w for name, w in weights.items()}
    return Decoder(config, sharp)


def scorer() -> Scorer:
    drawn = {label: random_forecast(SHAPE, seed=at + 5, dtype=torch.float64) for at, label in enumerate(GRIDS)}
    drawn["two"] = ForecastWeights.of(drawn["two"].by_target, lead=2)
    return Scorer(forecasts=drawn)


def methods(*names: str) -> tuple[Method, ...]:
    return parse_methods(names or NAMES, spec=SPEC, forecasts=GRIDS)


def ids(tokens: int = TOKENS, seed: int = 8) -> torch.Tensor:
    return torch.randint(0, SHAPE.vocab, (tokens,), generator=torch.Generator().manual_seed(seed))


def config(**changes: object) -> StudyConfig:
    small: dict[str, object] = {
        "spec": SPEC, "window": TOKENS, "first": FIRST, "budgets": (6, 9), "path_budgets": (6, 9), "slot_budgets": (6,),
        "task_budgets": (6,), "tasks": (), "samples": 0, "task_tokens": 200,
    }  # fmt: skip
    return StudyConfig(**(small | changes))  # type: ignore[arg-type]
