"""The two-stage choice's scores, against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.shortlist.cpu import shortlist_scores
from sparda_core.kernels.shortlist.reference import shortlist_scores as reference
from sparda_core.kernels.shortlist.tensors import shortlist_scores as on_tensors
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.kernels.visible import blocks_to_score
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec
from tests.kernels.cases import entry_view, last_positions, lengths, randn, seeds, specs


@given(data=st.data(), spec=specs(), seed=seeds, queries=st.integers(1, 3), behind=st.integers(0, 1))
def test_scores_on_a_cpu_equal_the_reference(
    data: st.DataObject, spec: BlockSpec, seed: int, queries: int, behind: int
) -> None:
    tokens = data.draw(lengths(spec, 3))
    positions = last_positions(tokens, queries).clamp_min(-1)
    counts = [spec.entry_count(max(0, count - behind)) for count in tokens]
    means = entry_view(seed, counts, heads=2, width=1)
    scores = randn(seed + 7, 3, 2, queries, max(1, blocks_to_score(positions, spec)))
    scores[..., ::2] = scores[..., :1].clone()  # ties
    keep = data.draw(st.integers(spec.forced, spec.budget))
    got = shortlist_scores(scores, means, positions, spec, keep=keep)
    torch.testing.assert_close(got, reference(scores, means, positions, spec, keep=keep), rtol=0, atol=0)
    elsewhere = on_tensors(scores, means, positions, spec, keep=keep)
    torch.testing.assert_close(elsewhere, got, rtol=0, atol=0)
    chosen = choose_blocks(got, positions, spec)
    first = choose_blocks(scores, positions, spec.with_budget(keep))
    pairs = zip(first.flatten(0, 2), chosen.flatten(0, 2), strict=True)
    assert all(set(a.tolist()) <= set(b.tolist()) | {-1} for a, b in pairs)


def test_a_block_of_the_first_stage_ranks_before_any_bias() -> None:
    spec = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
    means = EntryView(
        buffer=torch.arange(23.0)[None, None, :, None], rows=torch.zeros(1, dtype=torch.int64),
        counts=torch.tensor([23]),
    )  # fmt: skip
    scores = torch.tensor([[[[0.0, 3, 1, 2, 0, 0]]]])
    got = shortlist_scores(scores, means, torch.tensor([[95]]), spec, keep=4)
    inf = float("inf")
    assert got.tolist() == [[[[inf, inf, 11.0, 15.0, inf, inf]]]]


def test_means_of_more_than_one_value_are_refused() -> None:
    means = entry_view(0, [3], heads=2, width=2)
    with pytest.raises(ConfigError, match="means have width 2"):
        shortlist_scores(randn(0, 1, 2, 1, 1), means, torch.tensor([[5]]), BlockSpec(), keep=6)
