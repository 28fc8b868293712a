"""Causal attention over everything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.attend_dense import cpu
from sparda_core.kernels.attend_dense.cpu import attend_dense
from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.kernels.attend_dense.reference import attend_dense as dense_reference
from tests.kernels.cases import groups, head_dims, kv_heads, randn, seeds


@given(
    seed=seeds, heads=kv_heads, group=groups, width=head_dims, offset=st.integers(0, 40), count=st.integers(1, 8),
    mask_bytes=st.sampled_from([1, 500, 2**26]), biased=st.sampled_from([0, 5]),
)  # fmt: skip
def test_dense_attention_equals_the_reference_however_its_queries_are_chunked(
    seed: int, heads: int, group: int, width: int, offset: int, count: int, mask_bytes: int, biased: int
) -> None:
    query = randn(seed, 2, heads * group, count, width)
    keys, values = randn(seed + 1, 2, 2, heads, offset + count, width)
    bias = biased * randn(seed + 2, 2, heads, offset + count) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_MASK_BYTES", mask_bytes)
        got = attend_dense(query, keys, values, offset, bias)
    torch.testing.assert_close(got, dense_reference(query, keys, values, offset, bias), rtol=1e-11, atol=1e-11)


def test_a_chunk_at_an_offset_equals_the_same_rows_of_the_whole() -> None:
    query, keys, values = randn(0, 1, 6, 50, 64), randn(1, 1, 2, 50, 64), randn(2, 1, 2, 50, 64)
    whole = attend_dense(query, keys, values, 0)
    tail = attend_dense(query[:, :, 33:], keys, values, 33)
    torch.testing.assert_close(whole[:, :, 33:], tail, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes_stay_what_they_are(dtype: torch.dtype) -> None:
    query, keys, values = (randn(s, 1, h, 20, 64).to(dtype) for s, h in ((0, 6), (1, 2), (2, 2)))
    got = attend_dense(query[:, :, 10:], keys, values, 10)
    exact = dense_reference(query[:, :, 10:].double(), keys.double(), values.double(), 10)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 2e-4), (torch.float16, 1e-4), (torch.float32, 1e-6)])
def test_a_folded_bias_keeps_more_of_itself_than_one_narrow_number_holds(dtype: torch.dtype, least: float) -> None:
    bias = 8 * randn(3, 1, 1, 500)
    nothing = torch.zeros(1, 1, 500, 128, dtype=dtype)
    folded = fold_bias(nothing, nothing, nothing, bias)
    got = folded.scale * folded.query[:, :, 0].double() @ folded.keys[0, 0].double().mT
    assert float((got[0] - bias[0]).abs().max()) < least


def test_keys_that_do_not_end_with_the_last_query_are_refused() -> None:
    query, keys = randn(0, 1, 2, 5, 32), randn(1, 1, 2, 12, 32)
    with pytest.raises(ConfigError, match=r"keys has shape .* want .*N=11"):
        attend_dense(query, keys, keys, 6)
    with pytest.raises(ConfigError, match="offset=-1"):
        attend_dense(query, keys[:, :, :4], keys[:, :, :4], -1)
