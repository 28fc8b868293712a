"""Choosing blocks on a GPU equals the reference exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.kernels.topk.reference import choose_blocks as reference
from sparda_core.shapes import BlockSpec
from tests.gpu.select.cases import INF, NAN, empty_choice, generator, positions_of, seeds, specs, strided

POISON = 1e30


def scores_of(seed: int, shape: tuple[int, int, int], kind: str) -> torch.Tensor:
    """Few distinct values, so that ties are the rule, and every special one; or hardly any tie."""
    made = generator(seed)
    if kind == "ties":
        values = torch.tensor([-INF, -1.0, -0.0, 0.0, 1e-42, 0.5, 2.0, INF, NAN])
        return values[torch.randint(len(values), shape, generator=made)]
    if kind == "pairs":  # neighbours share an entry, and so a score
        return torch.randn(*shape[:2], (shape[2] + 1) // 2, generator=made).repeat_interleave(2, -1)[..., : shape[2]]
    return torch.randn(shape, generator=made) * 10.0 ** torch.randint(-20, 20, shape, generator=made)


def choose(scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec) -> Choice:
    """What the kernel chooses, from and into views, with poison behind the current block."""
    behind = torch.arange(scores.shape[2]) > (position // spec.block)[:, None, None]
    choice = empty_choice(scores.shape[0], scores.shape[1], spec.budget)
    choose_blocks(strided(torch.where(behind, POISON, scores)), position.to(DEVICE, torch.int32), spec, choice)
    return choice


@settings(deadline=None, max_examples=25)
@given(
    data=st.data(), seed=seeds, spec=specs(), heads=st.integers(1, 2), spare=st.integers(0, 3),
    kind=st.sampled_from(["ties", "pairs", "spread"]),
)  # fmt: skip
def test_the_choice_equals_the_reference(
    data: st.DataObject, seed: int, spec: BlockSpec, heads: int, spare: int, kind: str
) -> None:
    position = data.draw(positions_of(spec, places=3))
    scores = scores_of(seed, (3, heads, max(0, int(position.max())) // spec.block + 1 + spare), kind)
    got = choose(scores, position, spec)
    want = reference(scores[:, :, None], position[:, None], spec)[:, :, 0]
    assert torch.equal(got.blocks.cpu(), want)
    assert torch.equal(got.counts.cpu(), (want >= 0).sum(-1).int())


@pytest.mark.parametrize("kind", ["ties", "pairs", "spread"])
def test_a_row_of_128k_tokens_chooses_as_the_reference_does(kind: str) -> None:
    spec = BlockSpec(block=64, sink=1, local=32, budget=96)
    position = torch.tensor([2049 * 64 - 1])
    scores = scores_of(5, (1, 1, 2049), kind)
    got = choose(scores, position, spec)
    assert torch.equal(got.blocks.cpu(), reference(scores[:, :, None], position[:, None], spec)[:, :, 0])


@settings(deadline=None, max_examples=15)
@given(seed=seeds, spec=specs(), tokens=st.integers(1, 900))
def test_forced_blocks_are_in_and_no_block_left_out_ranks_above_one_taken(
    seed: int, spec: BlockSpec, tokens: int
) -> None:
    scores = torch.randn(1, 1, (tokens - 1) // spec.block + 1, generator=generator(seed))
    choice = choose(scores, torch.tensor([tokens - 1]), spec)
    taken = set(choice.blocks[0, 0, : int(choice.counts[0, 0])].tolist())
    forced, seen = set(spec.forced_blocks(tokens - 1)), set(range(scores.shape[2]))
    assert forced <= taken <= seen
    assert len(taken) == min(spec.budget, len(seen))
    worst = min((float(scores[0, 0, b]) for b in taken - forced), default=INF)
    assert all(float(scores[0, 0, b]) <= worst for b in seen - taken)


def test_what_does_not_fit_is_refused() -> None:
    spec = BlockSpec(sink=1, local=1, budget=5)
    scores, position = torch.zeros(2, 1, 9, device=DEVICE), torch.zeros(2, dtype=torch.int32, device=DEVICE)
    choice = empty_choice(2, 1, 5)
    with pytest.raises(ConfigError, match=r"scores is torch\.float16"):
        choose_blocks(scores.half(), position, spec, choice)
    with pytest.raises(ConfigError, match=r"position is torch\.int64"):
        choose_blocks(scores, position.long(), spec, choice)
    with pytest.raises(ConfigError, match=r"blocks has shape \[2, 1, 4\]"):
        choose_blocks(scores, position, spec, empty_choice(2, 1, 4))
    with pytest.raises(ConfigError, match="must be contiguous"):
        choose_blocks(scores.new_zeros(2, 1, 18)[..., ::2], position, spec, choice)
    with pytest.raises(ConfigError, match="must be <= 16384"):
        choose_blocks(scores.new_zeros(2, 1, 17000), position, spec, choice)
