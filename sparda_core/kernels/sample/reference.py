"""Next tokens from logits, a row at a time."""

from __future__ import annotations

import torch


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """int64 [B]: id of the largest of logits [B, vocab]; ties to the lower id. NaN never wins; a row of it gives 0."""
    seen = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return torch.stack([(row == row.max()).nonzero()[0, 0] for row in seen])


def nucleus(
    logits: torch.Tensor, draw: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """int64 [B]: one id of the smallest set of likely tokens whose chances reach `top_p`, drawn by its chances.

    logits       [B, vocab]; NaN counts as -inf
    draw         [B] in [0, 1): the id at which the chances of the set, most likely first, pass `draw` of their sum
    temperature  [B]; 0 is greedy
    top_p        [B] in (0, 1]
    Equal logits stand in the order of their ids.
    """
    chosen = greedy(logits)
    for row, warm in enumerate(temperature.tolist()):
        if warm > 0:
            seen = logits[row].double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            best = seen.max()
            scaled = torch.where(seen == best, 0.0, (seen - best) / warm)
            chances, ids = torch.softmax(scaled, 0).sort(descending=True, stable=True)
            kept = chances * (chances.cumsum(0) - chances < float(top_p[row]))
            passed = kept.cumsum(0) > float(draw[row]) * kept.sum()
            chosen[row] = ids[passed.nonzero()[0, 0]]
    return chosen


def draw(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on a row's seed (64 bits) and a position (32 bits) alone.

    The first word of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), key = seed,
    counter = position; folded to 31 bits, as Triton's `tl.rand` makes a float of it.
    """
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = position & low, 0, 0, 0
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(10):
        one, two = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (two >> 32) ^ c1 ^ k0, two & low, (one >> 32) ^ c3 ^ k1, one & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return (c0 if c0 < 2**31 else low - c0) * 4.6566127342e-10
