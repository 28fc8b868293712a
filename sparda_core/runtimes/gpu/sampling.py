"""How each row of a GPU session samples: device tensors, so that they change without a new capture."""

from __future__ import annotations

from typing import Self

import attrs
import torch

from sparda_core.kernels.sample.gpu import SampleScratch, greedy, sample_tokens
from sparda_core.runtimes.gpu.sampling_bounds import check_sampling


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
