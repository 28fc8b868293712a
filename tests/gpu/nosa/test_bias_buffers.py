"""Biases of a GPU session's rows: whatever becomes of a row, they are its own."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from sparda_core.runtimes.gpu.bias_buffers import BiasBuffers
from sparda_core.runtimes.gpu.tiers import GpuTiers
from tests.gpu.tiers.worlds import PLAN, SHAPE, SPEC, tokens_of
from tests.gpu_env import DEVICE

BIASED = attrs.evolve(PLAN, shape=attrs.evolve(SHAPE, token_bias=True))


def opened(**changes: Any) -> tuple[GpuTiers, BiasBuffers]:
    tiers = GpuTiers(attrs.evolve(BIASED, **changes), dtype=torch.float32, device=DEVICE)
    assert tiers.bias is not None
    for buffer in (tiers.bias.tokens, tiers.bias.means):
        buffer.fill_(float("nan"))
    return tiers, tiers.bias


def append(tiers: GpuTiers, place: int, bias: torch.Tensor) -> None:
    """Load tokens with these biases [L, Hk, n] at the end of a row."""
    start = tiers.length(place)
    stop = start + bias.shape[2]
    kv = tokens_of(bias.shape[2], stop)
    tiers.reserve({place: stop})
    for layer in range(SHAPE.layers):
        tiers.load(place, layer, kv[layer, 0], kv[layer, 1], start, bias[layer])
    tiers.refresh(place, stop, stale_from=start)
    tiers.commit({place: stop})


def check(tiers: GpuTiers, place: int, want: torch.Tensor) -> None:
    tokens = want.shape[2]
    count = SPEC.entry_count(tokens)
    for layer in range(SHAPE.layers):
        got, means = tiers.read_bias(place, layer, tokens), tiers.means(layer, place)
        assert got is not None
        assert means is not None
        assert torch.equal(got.cpu(), want[layer])
        exact = want[layer].unfold(1, SPEC.window, SPEC.stride).mean(-1) if count else want[layer][:, :0]
        torch.testing.assert_close(means[:, :count].cpu(), exact)


def biases(tokens: int, seed: int) -> torch.Tensor:
    return torch.randn(SHAPE.layers, SHAPE.kv_heads, tokens, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("resident", [0, 1, 3])
def test_biases_follow_their_rows_through_prompts_forks_crops_and_moves(resident: int) -> None:
    tiers, _ = opened(resident_layers=resident)
    first, more, other = biases(19, 1), biases(14, 2), biases(30, 3)
    tiers.add(0)
    for part in (first, more[..., :1], more[..., 1:]):
        append(tiers, 0, part)
    whole = torch.cat((first, more), 2)
    check(tiers, 0, whole)
    tiers.fork(0, 2)
    tiers.crop(0, 13)
    append(tiers, 0, other)
    check(tiers, 0, torch.cat((whole[..., :13], other), 2))
    check(tiers, 2, whole)
    tiers.retire(0)
    tiers.move(2, 0)
    append(tiers, 0, other)
    check(tiers, 0, torch.cat((whole, other), 2))


def test_what_is_taken_is_what_the_plan_counts() -> None:
    tiers, bias = opened()
    parts = BIASED.device_parts()
    assert tiers.allocated()["token bias"] == bias.used_bytes == parts["token bias"]
    assert parts["token bias"] == 3 * 3 * 2 * (80 + SPEC.entry_count(80)) * 4
    assert PLAN.device_parts()["token bias"] == 0
    plain = GpuTiers(PLAN, dtype=torch.float32, device=DEVICE)
    assert plain.read_bias(0, 0, 0) is plain.means(0, 0) is None
