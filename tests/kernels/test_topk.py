"""Choosing blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.kernels.topk.reference import choose_blocks as choose_reference
from sparda_core.selection import check_selection
from sparda_core.shapes import BlockSpec
from tests.kernels.cases import INF, NAN, generator, last_positions, lengths, seeds, specs

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


def _scores(seed: int, *size: int, dtype: torch.dtype) -> torch.Tensor:
    """Few distinct values, so that ties are the rule, and every special one."""
    values = torch.tensor([-INF, -1.0, -0.0, 0.0, 0.5, 2.0, INF, NAN], dtype=dtype)
    return values[torch.randint(len(values), size, generator=generator(seed))]


@given(data=st.data(), seed=seeds, spec=specs(), heads=st.integers(1, 3), queries=st.integers(1, 3), dtype=DTYPES)
def test_the_compiled_choice_equals_the_reference_and_is_lawful(
    data: st.DataObject, seed: int, spec: BlockSpec, heads: int, queries: int, dtype: torch.dtype
) -> None:
    tokens = data.draw(lengths(spec, rows=3))
    positions = last_positions(tokens, queries)
    blocks = max(0, max(tokens) // spec.block + data.draw(st.integers(-2, 2)))
    scores = _scores(seed, 3, heads, queries, blocks, dtype=dtype)
    got = choose_blocks(scores, positions, spec)
    assert torch.equal(got, choose_reference(scores, positions, spec))
    check_selection(got.numpy(), spec=spec, positions=positions.numpy())


@given(seed=seeds, spec=specs(), tokens=st.integers(1, 2000))
def test_no_block_left_out_ranks_above_one_taken(seed: int, spec: BlockSpec, tokens: int) -> None:
    position = tokens - 1
    scores = torch.randn(1, 1, 1, position // spec.block + 1, generator=generator(seed))
    chosen = choose_blocks(scores, torch.tensor([[position]]), spec)[0, 0, 0]
    taken = set(chosen[chosen >= 0].tolist())
    free = set(range(position // spec.block + 1)) - set(spec.forced_blocks(position))
    worst = min((float(scores[0, 0, 0, b]) for b in taken & free), default=INF)
    assert len(taken) == min(spec.budget, position // spec.block + 1)
    assert all(float(scores[0, 0, 0, b]) <= worst for b in free - taken)


def test_a_tie_goes_to_the_lower_id() -> None:
    spec = BlockSpec(sink=1, local=1, budget=5)
    chosen = choose_blocks(torch.ones(1, 1, 1, 9), torch.tensor([[64 * 9 - 1]]), spec)
    assert chosen.tolist() == [[[[0, 1, 2, 7, 8]]]]


def test_nan_ranks_with_minus_infinity_and_either_may_fill_the_budget() -> None:
    spec = BlockSpec(sink=0, local=1, budget=5)
    scores = torch.tensor([-INF, NAN, -INF, -3.0, NAN, 0.0, 0.0, 0.0]).reshape(1, 1, 1, -1)
    chosen = choose_blocks(scores, torch.tensor([[64 * 8 - 1]]), spec)
    assert chosen.tolist() == [[[[0, 3, 5, 6, 7]]]]
    chosen = choose_blocks(scores, torch.tensor([[64 * 5 - 1]]), spec)
    assert chosen.tolist() == [[[[0, 1, 2, 3, 4]]]]


def test_blocks_without_a_score_rank_as_minus_infinity() -> None:
    spec = BlockSpec(sink=0, local=1, budget=4)
    chosen = choose_blocks(torch.tensor([[[[-5.0]]]]), torch.tensor([[64 * 6]]), spec)
    assert chosen.tolist() == [[[[0, 1, 5, 6]]]]


def test_an_inactive_row_selects_nothing_beside_an_active_one() -> None:
    spec = BlockSpec(sink=0, local=1, budget=3)
    chosen = choose_blocks(torch.zeros(2, 1, 1, 2), torch.tensor([[-1], [64]]), spec)
    assert chosen.tolist() == [[[[-1, -1, -1]]], [[[0, 1, -1]]]]


@pytest.mark.parametrize(("local", "count"), [(32, 34), (16, 18)])
def test_forced_blocks_at_block_500_are_those_of_the_two_base_models(local: int, count: int) -> None:
    spec = BlockSpec(sink=1, local=local, budget=local + 2)
    chosen = choose_blocks(torch.zeros(1, 1, 1, 501), torch.tensor([[500 * 64]]), spec)
    assert chosen.ravel().tolist() == [0, *range(500 - local, 501)]
    assert chosen.numel() == count


def test_future_blocks_are_never_chosen_whatever_their_score() -> None:
    spec = BlockSpec(sink=0, local=1, budget=4)
    scores = torch.tensor([0.0, 0.0, 0.0, INF, INF]).reshape(1, 1, 1, -1)
    assert choose_blocks(scores, torch.tensor([[130]]), spec).tolist() == [[[[0, 1, 2, -1]]]]


def test_scores_and_positions_that_do_not_fit_are_refused() -> None:
    spec = BlockSpec()
    with pytest.raises(ConfigError, match=r"positions has shape \[2, 1\]; want \[B=1, T=1\]"):
        choose_blocks(torch.zeros(1, 1, 1, 4), torch.zeros(2, 1, dtype=torch.int64), spec)
    with pytest.raises(ConfigError, match="want a float and an integer dtype"):
        choose_blocks(torch.zeros(1, 1, 1, 4, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), spec)
