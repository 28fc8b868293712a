"""Random models of any shape, so that every part can be tested without real weights."""

from __future__ import annotations

import math

import torch

from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights
from sparda_core.models.model import Model
from sparda_core.models.weights import expected_tensors
from sparda_core.shapes import ModelShape

TINY_SHAPE = ModelShape(
    name="tiny",
    layers=3,
    hidden=32,
    ffn=48,
    q_heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=97,
    context=512,
    tied_embeddings=True,
)


def random_weights(
    shape: ModelShape, *, seed: int, dtype: torch.dtype, config: DecoderConfig | None = None
) -> dict[str, torch.Tensor]:
    """Every tensor of `shape` by its checkpoint name: normal / sqrt(fan in), norms near 1, biases near 0.

    config  of a family that has more tensors than a plain Llama
    """
    source = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, size in expected_tensors(config or DecoderConfig(shape=shape)).items():
        drawn = torch.randn(size, generator=source, dtype=torch.float64)
        middle = 0 if name.endswith(".bias") else 1
        tensors[name] = (middle + 0.1 * drawn if len(size) == 1 else drawn / math.sqrt(size[-1])).to(dtype)
    return tensors


def random_forecast(shape: ModelShape, *, seed: int, dtype: torch.dtype, lead: int = 1) -> ForecastWeights:
    """Forecast weights of the right shapes that know nothing: uniform in +-1/sqrt(hidden)."""
    source = torch.Generator().manual_seed(seed)
    size = (shape.kv_heads * shape.head_dim, shape.hidden)

    def draw() -> torch.Tensor:
        unit = torch.rand(size, generator=source, dtype=torch.float64)
        return ((2 * unit - 1) / math.sqrt(shape.hidden)).to(dtype)

    following = [draw() for _ in range(shape.layers - lead)]
    own = [draw() for _ in range(lead)]
    return ForecastWeights.of((*own, *following), lead=lead, metadata={"init": "random", "seed": seed})


def tiny_model(
    shape: ModelShape = TINY_SHAPE,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    forecast: bool = True,
    lead: int = 1,
    device: torch.device | str = "cpu",
    config: DecoderConfig | None = None,
) -> Model:
    """A random model of any shape, the same for the same seed; no tokenizer. Float64 is fine.

    lead    of its Forecast
    config  of a family that is no plain Llama
    """
    weights = {name: w.to(device) for name, w in random_weights(shape, seed=seed, dtype=dtype, config=config).items()}
    projections = random_forecast(shape, seed=seed + 1, dtype=dtype, lead=lead) if forecast else None
    config = config or DecoderConfig(shape=shape, eos_id=0)
    return Model(name=shape.name, decoder=Decoder(config, weights, forecast=projections))
