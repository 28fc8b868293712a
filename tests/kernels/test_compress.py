"""Keys to entries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.compress.cpu import compress
from sparda_core.kernels.compress.reference import compress as compress_reference
from tests.kernels.cases import randn, seeds


@pytest.mark.parametrize(("tokens", "entries"), [(0, 0), (31, 0), (32, 1), (47, 1), (48, 2), (64, 3), (65536, 4095)])
def test_only_full_windows_become_entries(tokens: int, entries: int) -> None:
    assert compress(torch.zeros(tokens, 2), window=32, stride=16).shape == (entries, 2)


@given(
    seed=seeds, heads=st.integers(1, 3), tokens=st.integers(0, 70), width=st.sampled_from([1, 60, 64]),
    window=st.integers(1, 33), stride=st.integers(1, 17), dtype=st.sampled_from([torch.float64, torch.float32]),
)  # fmt: skip
def test_entries_on_a_cpu_equal_the_reference(
    seed: int, heads: int, tokens: int, width: int, window: int, stride: int, dtype: torch.dtype
) -> None:
    keys = randn(seed, 2, tokens, heads, width).to(dtype).transpose(1, 2)
    got = compress(keys, window=window, stride=stride)
    torch.testing.assert_close(got, compress_reference(keys, window=window, stride=stride), rtol=1e-5, atol=1e-6)


@given(seed=seeds, start=st.integers(0, 5), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_an_entry_is_the_same_bit_for_bit_from_any_cut_of_the_keys(seed: int, start: int, dtype: torch.dtype) -> None:
    keys = randn(seed, 3, 200, 64).to(dtype)
    whole = compress(keys, window=32, stride=16)
    part = compress(keys[:, 16 * start : 16 * start + 64], window=32, stride=16)
    assert torch.equal(part, whole[:, start : start + 3])


def test_half_precision_keys_are_averaged_in_float32_and_rounded_once() -> None:
    keys = randn(0, 40, 64).bfloat16()
    got = compress(keys, window=32, stride=8)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, compress(keys.float(), window=32, stride=8).bfloat16())


def test_keys_outside_a_window_do_not_touch_its_entry() -> None:
    keys = torch.ones(79, 4)
    keys[64:] = float("nan")
    entries = compress(keys, window=32, stride=16)
    assert torch.equal(entries, torch.ones(3, 4))


def test_a_window_or_stride_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="stride=0"):
        compress(torch.zeros(4, 4), window=2, stride=0)
