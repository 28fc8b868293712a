"""Scores by a hash, as plainly as possible."""

from __future__ import annotations

import torch

# Odd 64-bit multipliers and shifts of SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014), as signed integers.
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
#: The golden ratio's 64 bits, which separates the seeds 0, 1, 2, ...
_STEP = 0x9E3779B97F4A7C15 - 2**64


def uniform_block_scores(
    positions: torch.Tensor, *, seed: int, layer: int, kv_heads: int, block: int
) -> torch.Tensor:
    """Float32 [B, Hk, T, M], uniform in [0, 1), M = max(positions) // block + 1.

    positions  int64 [B, T], absolute. A score is a function of (seed, layer, position, head, block) alone
    """
    blocks = max(0, int(positions.max())) // block + 1 if positions.numel() else 0
    head_H11 = torch.arange(kv_heads, device=positions.device)[:, None, None]
    block_M = torch.arange(blocks, device=positions.device)
    state = _mix(torch.tensor(seed, device=positions.device) * _STEP)
    for part in (torch.tensor(layer, device=positions.device), positions[:, None, :, None], head_H11, block_M):
        state = _mix(state ^ (part * _STEP))
    return _shift(state, 40).to(torch.float32) * 2.0**-24


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Int64 -> int64, a bijection whose every output bit depends on every input bit; products wrap."""
    value = (value ^ _shift(value, 30)) * _FIRST
    value = (value ^ _shift(value, 27)) * _SECOND
    return value ^ _shift(value, 31)


def _shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without dragging the sign along."""
    return torch.bitwise_and(value >> bits, 2 ** (64 - bits) - 1)
