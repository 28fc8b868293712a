"""Attention over chosen blocks, and over everything."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.attend.bias import ListedBias
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.kernels.attend.reference import attend_blocks as attend_reference
from tests.kernels.cases import INF, NAN, generator, groups, head_dims, kv_heads, randn, seeds


def _case(
    seed: int, *, batch: int = 2, heads: int = 2, group: int = 3, queries: int = 2, width: int = 32, block: int = 16,
    listed: int = 4, dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Query, pool, block lists and visible tokens; blocks absent, empty, partial and full."""
    stream = generator(seed)
    query = randn(seed, batch, heads * group, queries, width).to(dtype)
    size = (batch, heads, queries, listed)
    pool = randn(seed + 1, 2 * listed + 1, 2, block, width).to(dtype)
    physical = torch.randint(-1, pool.shape[0], size, generator=stream)
    tokens = torch.randint(0, block + 1, size, generator=stream, dtype=torch.int32)
    return query, pool, physical, tokens


def _poisoned(pool: torch.Tensor, physical: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The pool with NaN and infinity wherever no query of the case looks."""
    seen = torch.zeros(pool.shape[0], pool.shape[2], dtype=torch.bool)
    for block, count in zip(physical.ravel().tolist(), tokens.ravel().tolist(), strict=True):
        if block >= 0:
            seen[block, :count] = True
    hidden = torch.where(torch.arange(pool.shape[2]) % 2 == 0, NAN, INF)[None, None, :, None].to(pool.dtype)
    return torch.where(seen[:, None, :, None], pool, hidden)


def _brute_force(query: torch.Tensor, pool: torch.Tensor, physical: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Masked softmax over the whole pool, a token counted once for every time it is listed."""
    group = query.shape[1] // physical.shape[1]
    shown = torch.arange(pool.shape[2]) < tokens[..., None]
    times = torch.zeros(*physical.shape[:3], pool.shape[0], pool.shape[2], dtype=query.dtype)
    for w in range(physical.shape[3]):
        here = (torch.arange(pool.shape[0]) == physical[..., w, None])[..., None] & shown[..., w, None, :]
        times += here
    times = times.flatten(-2).repeat_interleave(group, dim=1)
    logits = torch.einsum("bhtd,njd->bhtnj", query, pool[:, 0]).flatten(-2) / query.shape[-1] ** 0.5
    weights = times * torch.exp(logits - logits.amax(-1, keepdim=True))
    total = weights.sum(-1, keepdim=True)
    mixed = torch.einsum("bhtn,nd->bhtd", weights, pool[:, 1].flatten(0, 1))
    return torch.where(total > 0, mixed / total, 0.0)


@given(seed=seeds, heads=kv_heads, group=groups, width=head_dims, block=st.integers(16, 128), listed=st.integers(1, 5))
def test_attention_on_a_cpu_equals_the_reference_and_a_brute_force_softmax(
    seed: int, heads: int, group: int, width: int, block: int, listed: int
) -> None:
    case = _case(seed, heads=heads, group=group, width=width, block=block, listed=listed)
    got = attend_blocks(*case)
    torch.testing.assert_close(got, attend_reference(*case), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got, _brute_force(*case), rtol=1e-10, atol=1e-10)


def _bias(seed: int, physical: torch.Tensor, tokens: torch.Tensor, *, block: int, heads: int) -> ListedBias:
    """Random logical ids; NaN wherever no query of the case looks."""
    logical = torch.randint(0, 9, physical.shape, generator=generator(seed + 5), dtype=torch.int32)
    values = torch.full((5, heads, 9 * block), NAN, dtype=torch.float64)
    rows = torch.tensor([3, 0])
    for (row, head, t, w), here in np.ndenumerate(logical.numpy()):
        if physical[row, head, t, w] >= 0:
            seen = slice(here * block, here * block + int(tokens[row, head, t, w]))
            values[rows[row], head, seen] = randn(int(here) + head, block)[: seen.stop - seen.start]
    logical[physical < 0] = -1
    return ListedBias(values=values, rows=rows, blocks=logical)


@given(seed=seeds, heads=kv_heads, group=groups, dtype=st.sampled_from([torch.float64, torch.float32]))
def test_a_bias_is_added_to_the_logits_of_the_tokens_it_belongs_to(
    seed: int, heads: int, group: int, dtype: torch.dtype
) -> None:
    query, pool, physical, tokens = _case(seed, heads=heads, group=group, dtype=dtype)
    bias = _bias(seed, physical, tokens, block=16, heads=heads)
    got = attend_blocks(query, pool, physical, tokens, bias)
    exact = attend_reference(query.double(), pool.double(), physical, tokens, bias)
    assert torch.isfinite(got).all()
    tight = 1e-11 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(got.double(), exact, rtol=tight, atol=tight)
    # As the release has it: weights times e^bias, over their sum.
    plain = _weights(query, pool, physical, tokens, bias)
    torch.testing.assert_close(exact, plain, rtol=1e-10, atol=1e-10)


def _weights(
    query: torch.Tensor, pool: torch.Tensor, physical: torch.Tensor, tokens: torch.Tensor, bias: ListedBias
) -> torch.Tensor:  # fmt: skip
    out, group = torch.zeros_like(query, dtype=torch.float64), query.shape[1] // physical.shape[1]
    for (row, head, t), _ in np.ndenumerate(out[..., 0].numpy()):
        total, mixed = 0.0, torch.zeros(query.shape[-1], dtype=torch.float64)
        for w in range(physical.shape[-1]):
            block, count = int(physical[row, head // group, t, w]), int(tokens[row, head // group, t, w])
            for j in range(count if block >= 0 else 0):
                key, value = pool[block, :, j].double()
                at = int(bias.blocks[row, head // group, t, w]) * pool.shape[2] + j
                worth = bias.values[bias.rows[row], head // group, at].exp()
                weight = float((query[row, head, t].double() @ key / query.shape[-1] ** 0.5).exp() * worth)
                total, mixed = total + weight, mixed + weight * value
        out[row, head, t] = mixed / total if total else 0.0
    return out


def test_a_bias_that_lacks_a_visible_token_is_refused() -> None:
    query, pool, physical, tokens = _case(1)
    bias = _bias(1, physical, tokens, block=16, heads=2)
    with pytest.raises(ConfigError, match=r"bias\.blocks \(their last visible token\)"):
        attend_blocks(query, pool, physical, tokens, attrs.evolve(bias, values=bias.values[..., :20]))
    with pytest.raises(ConfigError, match=r"bias\.rows spans"):
        attend_blocks(query, pool, physical, tokens, attrs.evolve(bias, rows=bias.rows + 4))


@given(seed=seeds)
def test_memory_beyond_the_visible_tokens_never_leaks(seed: int) -> None:
    query, pool, physical, tokens = _case(seed)
    clean = attend_blocks(query, pool, physical, tokens)
    assert torch.equal(attend_blocks(query, _poisoned(pool, physical, tokens), physical, tokens), clean)
    assert torch.isfinite(clean).all()


@given(seed=seeds, dtype=st.sampled_from([torch.float64, torch.float32]))
def test_a_query_does_not_feel_its_neighbours(seed: int, dtype: torch.dtype) -> None:
    query, pool, physical, tokens = _case(seed, batch=3, queries=4, dtype=dtype)
    together = attend_blocks(query, pool, physical, tokens)
    alone = attend_blocks(query[1:2, :, 2:3], pool, physical[1:2, :, 2:3], tokens[1:2, :, 2:3])
    assert torch.equal(together[1:2, :, 2:3], alone)


def test_a_query_without_a_visible_token_gets_zero() -> None:
    query, pool, physical, tokens = _case(0)
    physical[0], tokens[1] = -1, 0
    assert torch.equal(attend_blocks(query, torch.full_like(pool, NAN), physical, tokens), torch.zeros_like(query))


def test_a_visible_nan_is_not_hidden() -> None:
    query, pool, physical, tokens = _case(0)
    physical[:], tokens[:] = 1, 2
    pool[1, 0, 1] = NAN
    assert attend_blocks(query, pool, physical, tokens).isnan().all()


def test_logits_far_apart_neither_overflow_nor_vanish() -> None:
    query, pool, physical, tokens = _case(3, dtype=torch.float32)
    physical[:], tokens[:] = 0, 16
    got = attend_blocks(query * 1e4, pool, physical, tokens)
    torch.testing.assert_close(got, attend_reference(query * 1e4, pool, physical, tokens), rtol=1e-4, atol=1e-4)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_widened_to_float32_and_rounded_once(dtype: torch.dtype, pool_dtype: torch.dtype) -> None:
    query, pool, physical, tokens = _case(5)
    query, pool = query.to(dtype), _poisoned(pool, physical, tokens).to(pool_dtype)
    got = attend_blocks(query, pool, physical, tokens)
    exact = attend_reference(query.double(), pool.double(), physical, tokens)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=float(torch.finfo(dtype).eps), atol=1e-3)


def test_strided_inputs_give_the_same_output() -> None:
    query, pool, physical, tokens = _case(7)
    strided = attend_blocks(
        query.transpose(1, 2).contiguous().transpose(1, 2), pool.repeat_interleave(2, dim=3)[..., ::2],
        physical.to(torch.int32), tokens.to(torch.int64),
    )  # fmt: skip
    assert torch.equal(strided, attend_blocks(query, pool, physical, tokens))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda q, p, i, t: (q, p, i + p.shape[0], t), r"physical spans .* must be in \[-1, 9\)"),
        (lambda q, p, i, t: (q, p, i, t + 17), r"tokens spans .* must be in \[0, 17\)"),
        (lambda q, p, i, t: (q[:, :5], p, i, t), "query has 5 heads, not a multiple of kv_heads=2"),
        (lambda q, p, i, t: (q[..., :30], p, i, t), "pool has shape .* want .*D=30"),
        (lambda q, p, i, t: (q, p, i[:1], t), "physical has shape"),
        (lambda q, p, i, t: (q.long(), p, i, t), "torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused_before_memory_is_read(spoil: object, message: str) -> None:
    assert callable(spoil)
    with pytest.raises(ConfigError, match=message):
        attend_blocks(*spoil(*_case(1)))
