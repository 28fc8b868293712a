"""The two-stage choice on a GPU is the reference's, block for block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.shortlist.cpu import shortlist_scores as on_cpu
from sparda_core.kernels.topk.choose import choose_blocks as choose_on_cpu
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

# isort: split
from sparda_core.device_view import Choice
from sparda_core.kernels.shortlist.gpu import shortlist_scores
from sparda_core.kernels.topk.gpu import choose_blocks

NAN = float("nan")
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=7)


def chosen(
    scores: torch.Tensor, means: torch.Tensor, position: torch.Tensor, spec: BlockSpec, unseen: int, keep: int
) -> tuple[np.ndarray, np.ndarray]:
    """By the kernels and by the CPU, int32 [B, Hk, budget]; scores [B, Hk, M], means [B, Hk, C], NaN beyond a row's."""
    batch, heads, _ = scores.shape
    where = position.long()
    counts = torch.tensor([spec.entry_count(max(0, at + 1 - unseen)) for at in where.tolist()])
    view = EntryView(buffer=means[..., None].clone(), rows=torch.arange(batch), counts=counts)
    ranked = on_cpu(scores[:, :, None], view, where[:, None], spec, keep=keep)
    want = choose_on_cpu(ranked, where[:, None], spec)[:, :, 0].numpy()

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        room = torch.full([size + 1 for size in tensor.shape], NAN, device=DEVICE)
        return room[tuple(slice(size) for size in tensor.shape)].copy_(tensor)

    mine, at = wide(scores), position.to(DEVICE)
    shortlist_scores(mine, wide(means), at, spec, unseen, keep=keep)
    empty = torch.full((batch, heads, spec.budget + 1), -7, dtype=torch.int32, device=DEVICE)
    choice = Choice(blocks=empty[..., :-1], counts=torch.full_like(empty[..., 0], -7))
    choose_blocks(mine, at, spec, choice)
    return choice.blocks.cpu().numpy(), want


@given(
    seed=st.integers(0, 2**31), positions=st.lists(st.integers(-1, 400), min_size=1, max_size=3),
    unseen=st.integers(0, 1), keep=st.integers(3, 7), levels=st.sampled_from([2, 1000]),
)  # fmt: skip
@settings(max_examples=6 if DEVICE.type == "cpu" else 60)
def test_both_stages_choose_what_the_cpu_chooses(
    seed: int, positions: list[int], unseen: int, keep: int, levels: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    batch, position = len(positions), torch.tensor(positions, dtype=torch.int32)
    scores = torch.randint(levels, (batch, 2, 27), generator=draw).float()
    means = torch.full((batch, 2, 104), NAN)
    for row, at in enumerate(positions):
        count = SPEC.entry_count(max(0, at + 1 - unseen))
        means[row, :, :count] = torch.randint(levels, (2, count), generator=draw).float()
    got, want = chosen(scores, means, position, SPEC, unseen, keep)
    np.testing.assert_array_equal(got, want)


def test_forty_one_of_ninety_six_at_the_sizes_of_the_paper() -> None:
    spec = BlockSpec(sink=1, local=16, budget=96)
    position = torch.tensor([40_000], dtype=torch.int32)
    draw = torch.Generator().manual_seed(0)
    scores, means = torch.rand(1, 2, 640, generator=draw), torch.rand(1, 2, 2600, generator=draw)
    got, want = chosen(scores, means, position, spec, 0, 41)
    np.testing.assert_array_equal(got, want)
    first = choose_on_cpu(scores[:, :, None], position.long()[:, None], spec.with_budget(41))[0, 0, 0]
    assert set(first.tolist()) <= set(got[0, 0].tolist())
    whole = choose_on_cpu(scores[:, :, None], position.long()[:, None], spec)[0, 0, 0]
    assert set(whole.tolist()) != set(got[0, 0].tolist())


def test_a_first_stage_below_the_forced_blocks_is_refused() -> None:
    scores = torch.zeros(1, 1, 4, device=DEVICE)
    with pytest.raises(ConfigError, match="keep=2 must be >= 3"):
        shortlist_scores(scores, scores, torch.zeros(1, dtype=torch.int32, device=DEVICE), SPEC, 0, keep=2)
