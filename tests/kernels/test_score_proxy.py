"""Block scores of the proxy query over partial keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.score_proxy.cpu import proxy_block_scores
from sparda_core.kernels.score_proxy.reference import proxy_block_scores as proxy_reference
from sparda_core.shapes import BlockSpec
from tests.kernels.cases import INF, NAN, groups, kv_heads, last_positions, lengths, randn, seeds, specs


def _partial(seed: int, counts: list[int], heads: int, width: int, spare: int = 2) -> torch.Tensor:
    partial = torch.full((len(counts), heads, max(counts) + spare, width), NAN, dtype=torch.float64)
    for row, count in enumerate(counts):
        partial[row, :, :count] = randn(seed + row, heads, count, width)
    return partial


@given(
    data=st.data(), seed=seeds, spec=specs(), heads=kv_heads, group=groups, width=st.sampled_from([1, 12, 32]),
    queries=st.integers(1, 3), early=st.integers(0, 1),
)  # fmt: skip
def test_proxy_scores_on_a_cpu_equal_the_reference(
    data: st.DataObject, seed: int, spec: BlockSpec, heads: int, group: int, width: int, queries: int, early: int
) -> None:
    tokens = data.draw(lengths(spec, rows=3))
    counts = [max(0, n - queries * early) for n in tokens]
    case = (
        randn(seed, 3, heads * group, queries, width), _partial(seed, counts, heads, width), torch.tensor(counts),
        last_positions(tokens, queries), spec, 0.3,
    )  # fmt: skip
    torch.testing.assert_close(proxy_block_scores(*case), proxy_reference(*case), rtol=1e-10, atol=1e-10)


def test_a_block_takes_the_best_of_65_tokens_and_none_after_the_query() -> None:
    spec = BlockSpec()
    query = torch.ones(1, 2, 1, 1)
    for token in (0, 63, 64, 127, 130, 131):
        partial = torch.full((1, 1, 200, 1), -1.0)
        partial[0, 0, token] = 5.0
        got = proxy_block_scores(query, partial, torch.tensor([200]), torch.tensor([[130]]), spec, 0.5)[0, 0, 0]
        best = {b for b in range(3) if 64 * b - 1 <= token <= 64 * b + 63 and token <= 130}
        assert got.tolist() == [5.0 if b in best else -1.0 for b in range(3)]


def test_tokens_beyond_the_count_do_not_exist() -> None:
    partial = torch.full((2, 1, 200, 1), NAN)
    partial[0, 0, :64] = 1.0
    counts, positions = torch.tensor([64, 0]), torch.tensor([[199], [-1]])
    got = proxy_block_scores(torch.ones(2, 1, 1, 1), partial, counts, positions, BlockSpec(), 1.0)
    assert got[:, 0, 0].tolist() == [[1.0, 1.0, -INF, -INF], [-INF] * 4]


def test_a_row_alone_scores_as_it_does_in_a_batch_bit_for_bit() -> None:
    query, partial = randn(0, 3, 6, 5, 32).float(), _partial(1, [150, 90, 200], 2, 32).float()
    counts, positions = torch.tensor([150, 90, 200]), last_positions([151, 91, 201], 5)
    together = proxy_block_scores(query, partial, counts, positions, BlockSpec(), 0.2)
    alone = proxy_block_scores(
        query[1:2, :, 3:4], partial[1:2, :, :90], counts[1:2], positions[1:2, 3:4], BlockSpec(), 0.2
    )
    assert torch.equal(alone[0, :, 0], together[1, :, 3, : alone.shape[-1]])


def test_what_does_not_fit_is_refused() -> None:
    query, partial = randn(0, 1, 6, 1, 32), _partial(1, [150], 2, 32)
    positions = torch.tensor([[150]])
    with pytest.raises(ConfigError, match="counts spans"):
        proxy_block_scores(query, partial, torch.tensor([153]), positions, BlockSpec(), 0.2)
    with pytest.raises(ConfigError, match="partial has shape"):
        proxy_block_scores(query[..., :8], partial, torch.tensor([150]), positions, BlockSpec(), 0.2)
