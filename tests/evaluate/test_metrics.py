from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.evaluate.metrics import kl_from_dense, next_token_match, perplexity, token_nll


def drawn(seed: int, rows: int = 5, vocab: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    dense, sparse = torch.randn(2, rows, vocab, generator=source, dtype=torch.float64) * 3
    return dense, sparse, torch.randint(vocab, (rows,), generator=source)


@given(seed=st.integers(0, 10**6))
def test_nll_and_kl_equal_their_definitions(seed: int) -> None:
    dense, sparse, targets = drawn(seed)
    p, q = dense.exp() / dense.exp().sum(-1, keepdim=True), sparse.exp() / sparse.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(token_nll(dense, targets), -p[torch.arange(5), targets].log())
    torch.testing.assert_close(kl_from_dense(dense, sparse), (p * (p / q).log()).sum(-1))


def test_equal_logits_lose_nothing_and_ties_take_the_lower_id() -> None:
    dense, _, _ = drawn(1)
    assert kl_from_dense(dense, dense + 5).max() < 1e-12
    assert next_token_match(dense, dense).all()
    assert next_token_match(torch.tensor([[1.0, 3, 3]]), torch.tensor([[0.0, 2, 1]])).item()


def test_perplexity_of_a_uniform_guess_is_the_vocabulary() -> None:
    nll = token_nll(torch.zeros(4, 10), torch.tensor([0, 3, 5, 9]))
    assert perplexity(nll) == pytest.approx(10, rel=1e-6)
    assert math.isclose(perplexity(torch.zeros(3)), 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_of_a_row_that_sat_out_are_refused(bad: float) -> None:
    dense, sparse, targets = drawn(2)
    sparse[3, 2] = bad
    with pytest.raises(ConfigError, match="finite"):
        kl_from_dense(dense, sparse)
    with pytest.raises(ConfigError, match="finite"):
        token_nll(sparse, targets)


def test_shapes_that_differ_and_empty_texts_are_refused() -> None:
    dense, sparse, _ = drawn(3)
    with pytest.raises(ConfigError, match="must match"):
        next_token_match(dense, sparse[:-1])
    with pytest.raises(ConfigError, match="0 tokens"):
        perplexity(torch.zeros(0))
