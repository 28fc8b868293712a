"""The gate of a gated feed-forward."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype


def silu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, of [B, 2 * ffn], gate first -> [B, ffn]; silu is rounded to the dtype before the product."""
    gate, up = gate_up.to(compute_dtype(gate_up)).chunk(2, dim=-1)
    opened = (gate / (1 + (-gate).exp())).to(gate_up.dtype)
    return (opened.to(up.dtype) * up).to(gate_up.dtype)
