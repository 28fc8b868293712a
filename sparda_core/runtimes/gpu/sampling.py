"""How each row of a GPU session samples: device tensors, so that they change without a new capture."""

from __future__ import annotations

import numbers
from typing import Self

import attrs
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.sample.gpu import SampleScratch, greedy, sample_tokens

#: Seeds are below this.
SEEDS = 2**63
#: The hottest that float32 holds.
_HOTTEST = torch.finfo(torch.float32).max


def check_sampling(temperature: float, top_p: float, seed: int) -> None:
    """Raise ConfigError outside 0 <= temperature < 2**128 (float32), 0 < top_p <= 1, 0 <= seed < 2**63."""
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ConfigError(f"{name}={value!r} must be a number")
    if not 0 <= temperature <= _HOTTEST:
        raise ConfigError(f"temperature={temperature} must be >= 0 and below 2**128, as float32 holds it")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p={top_p} must be in (0, 1]")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise ConfigError(f"seed={seed} must be an integer in [0, 2**63)")


@attrs.frozen(eq=False)
class Sampling:
    """Sampling of all places.

    temperature  float32 [B], 0 is greedy
    top_p        float32 [B], the smallest set of tokens of that probability is kept
    seed         int64 [B]; with a token's position it gives the random number, so batch and order do not matter
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    seed: torch.Tensor

    @classmethod
    def greedy(cls, places: int, device: torch.device, seed: torch.Tensor) -> Self:
        """Every place greedy."""
        kind = {"dtype": torch.float32, "device": device}
        return cls(torch.zeros(places, **kind), torch.ones(places, **kind), seed)  # type: ignore[call-overload]

    def at(self, places: slice) -> Self:
        """Some places, as views."""
        return type(self)(self.temperature[places], self.top_p[places], self.seed[places])

    def put(self, place: int, temperature: float, top_p: float, seed: int) -> None:
        """Set a place; raises ConfigError outside of what `check_sampling` allows."""
        check_sampling(temperature, top_p, seed)
        self.temperature[place] = temperature
        self.top_p[place] = top_p
        self.seed[place] = seed

    def copy(self) -> Self:
        """The same settings in tensors of their own."""
        return type(self)(self.temperature.clone(), self.top_p.clone(), self.seed.clone())

    def set(self, other: Sampling) -> None:
        """Take over another's settings of all places."""
        self.temperature.copy_(other.temperature)
        self.top_p.copy_(other.top_p)
        self.seed.copy_(other.seed)

    def move(self, source: int, target: int) -> None:
        """Place `target` samples as `source` does."""
        for part in (self.temperature, self.top_p, self.seed):
            part[target] = part[source]


def draw(
    logits: torch.Tensor, sampling: Sampling, position: torch.Tensor, out: torch.Tensor, scratch: SampleScratch, *,
    nucleus: bool, early: int = 0,
) -> None:  # fmt: skip
    """Next token of each place, int64 [B], from logits float32 [B, vocab] of the tokens at `position`.

    nucleus  whether any place samples; without, sampling's settings are not looked at
    early    see kernels/early.py; greedy's launches alone
    """
    if not nucleus:
        greedy(logits, out, scratch, early=early)
        return
    sample_tokens(
        logits, position=position, seed=sampling.seed, temperature=sampling.temperature, top_p=sampling.top_p, out=out,
        scratch=scratch,
    )  # fmt: skip
