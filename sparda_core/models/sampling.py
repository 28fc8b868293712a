"""Next token from logits: greedy, or nucleus sampling with a generator of its own."""

from __future__ import annotations

import torch

from sparda_core.errors import WeightsError
from sparda_core.runtimes.gpu.sampling_bounds import check_sampling


class Sampler:
    """Stateful only in its random stream: one seed, one sequence of choices."""

    def __init__(self, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        """temperature 0 is greedy (ties to the lower id); top_p keeps the smallest set of that probability.

        raises  ConfigError as `check_sampling` does: bounds are those of a GPU session
        """
        check_sampling(temperature, top_p, seed)
        self._temperature, self._top_p = temperature, top_p
        self._stream = torch.Generator().manual_seed(seed)

    def choose(self, logits: torch.Tensor) -> int:
        """One id from logits [vocab]; raises WeightsError where they hold NaN, or infinity as the largest."""
        best = check_logits(logits)
        if self._temperature == 0:
            # argmax alone does not say which of equal logits it takes.
            return int((logits == best).nonzero()[0])
        # The largest becomes 0, so that no temperature however low divides it into infinity.
        scaled = (logits.double() - best) / self._temperature
        chances, ids = torch.softmax(scaled, 0).sort(descending=True, stable=True)
        kept = chances.cumsum(0) - chances < self._top_p
        return int(ids[torch.multinomial(chances * kept, 1, generator=self._stream)])


def check_logits(logits: torch.Tensor) -> torch.Tensor:
    """The largest of logits [vocab]; raises WeightsError where they hold NaN, or infinity as the largest."""
    best = logits.max()
    if not best.isfinite():
        raise WeightsError(f"the largest logit is {float(best)}: the model's weights overflow, or are damaged")
    return best
