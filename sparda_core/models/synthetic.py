"""Random weights of any shape, drawn where they will stay, for speed tests that need no real ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch

from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights, following_key, own_key
from sparda_core.models.model import Model
from sparda_core.models.weights import expected_tensors
from sparda_core.shapes import ModelShape


@attrs.frozen(eq=False)
class DrawnWeights(Mapping[str, torch.Tensor]):
    """A checkpoint that holds no tensor: each is drawn when it is asked for, the same every time.

    A decoder that takes it layer by layer never has much more than itself in memory. Matrices are normal with a
    deviation of 1 / sqrt(fan in), so that activations stay finite through any number of layers; norms are near 1,
    biases near 0.
    A name and a seed settle a tensor on one kind of device; another kind draws others.
    """

    shape: ModelShape
    seed: int
    dtype: torch.dtype
    device: torch.device
    config: DecoderConfig | None = None
    sizes: Mapping[str, tuple[int, ...]] = attrs.field(init=False)

    @sizes.default
    def _expected(self) -> Mapping[str, tuple[int, ...]]:
        return expected_tensors(self.config or DecoderConfig(shape=self.shape))

    def __getitem__(self, name: str) -> torch.Tensor:
        """Draw the tensor called `name`."""
        size = self.sizes[name]
        drawn = self.draw(name, size)
        return drawn.mul_(0.1).add_(0 if name.endswith(".bias") else 1) if len(size) == 1 else drawn

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def draw(self, name: str, size: tuple[int, ...]) -> torch.Tensor:
        """Normal values; a matrix's deviation is 1 / sqrt(fan in), a vector's 1."""
        # One number of 32 bits of both: a CPU's generator looks at no more.
        source = torch.Generator(self.device).manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        drawn = torch.randn(size, generator=source, dtype=self.dtype, device=self.device)
        return drawn if len(size) == 1 else drawn.mul_(1 / math.sqrt(size[-1]))


def synthetic_forecast(
    shape: ModelShape, *, device: torch.device | str, dtype: torch.dtype, seed: int = 0, lead: int = 1
) -> ForecastWeights:
    """Random projections of any lead; those of `synthetic_model` for the same seed."""
    weights = DrawnWeights(shape, seed, dtype, torch.device(device))
    size = (shape.kv_heads * shape.head_dim, shape.hidden)
    names = [*map(own_key, range(lead)), *map(following_key, range(shape.layers - lead))]
    drawn = [weights.draw(name, size) for name in names]
    return ForecastWeights.of(drawn, lead=lead, metadata={"init": "random"})


def synthetic_model(
    shape: ModelShape,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    forecast: bool = True,
    lead: int = 1,
    config: DecoderConfig | None = None,
) -> Model:
    """A random model with a Forecast that knows nothing, no tokenizer. At its peak it takes about a tenth more.

    lead    of the Forecast
    config  constants of the model; of `shape`, with plain Llama's, if None
    """
    where: dict[str, Any] = {"device": device, "dtype": dtype, "seed": seed}
    decoder = Decoder(
        config or DecoderConfig(shape=shape),
        DrawnWeights(shape, seed, dtype, torch.device(device), config),
        forecast=synthetic_forecast(shape, lead=lead, **where) if forecast else None,
        source=f"random weights of {shape.name}",
    )
    return Model(name=shape.name, decoder=decoder)
