"""Norm, gate, and the ends of a step, against their references in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from sparda_core.errors import ConfigError
from sparda_core.kernels.gate import gpu as gate
from sparda_core.kernels.gate import reference as gate_reference
from sparda_core.kernels.norm import gpu as norm
from sparda_core.kernels.norm import gpu_heads
from sparda_core.kernels.norm import reference as norm_reference
from sparda_core.kernels.step import gpu as step
from sparda_core.kernels.step import reference as step_reference
from tests.gpu.append.worlds import close, strided
from tests.gpu_env import DEVICE, DTYPES


def randn(seed: int, *size: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal values in a view of a larger tensor that holds NaN."""
    out = strided(*size, dtype=dtype)
    return out.copy_(torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype))


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**31), rows=st.integers(1, 3), hidden=st.sampled_from([32, 100, 576, 1024]),
    dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_the_norm_is_the_references(seed: int, rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = randn(seed, rows, hidden, dtype=dtype), 1 + 0.1 * randn(seed + 1, 1, hidden, dtype=dtype)[0]
    out = strided(rows, hidden, dtype=dtype)
    norm.rms_norm(x, weight, out, eps=1e-5)
    close(out, norm_reference.rms_norm(x.double(), weight.double(), eps=1e-5))


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**31), rows=st.integers(1, 3), heads=st.integers(1, 11), behind=st.integers(0, 3),
    size=st.sampled_from([4, 36, 64]), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_the_norm_of_heads_is_the_references_and_leaves_what_is_behind_alone(
    seed: int, rows: int, heads: int, behind: int, size: int, dtype: torch.dtype
) -> None:
    proj = randn(seed, rows, (heads + behind) * size, dtype=dtype)
    weight = 1 + 0.1 * torch.randn(heads, size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    before = proj.clone()
    gpu_heads.norm_heads(proj, weight, eps=1e-5)
    close(proj, norm_reference.norm_heads(before.double(), weight.double(), eps=1e-5))
    assert torch.equal(proj[:, heads * size :], before[:, heads * size :])


def test_the_norm_of_heads_is_torchs_a_head_and_refuses_what_does_not_fit() -> None:
    proj, weight = torch.randn(2, 3 * 8), torch.randn(2, 8)
    want = torch.cat((F.rms_norm(proj[:, :16].view(2, 2, 8), (8,), None, 1e-5) * weight, proj[:, None, 16:]), 1)
    close(norm_reference.norm_heads(proj, weight, eps=1e-5), want.double().flatten(1))
    with pytest.raises(ConfigError, match="proj has 24 values a row; must have at least 4 heads of 8"):
        gpu_heads.norm_heads(proj.to(DEVICE), torch.ones(4, 8, device=DEVICE), eps=1e-5)
    with pytest.raises(ConfigError, match="weight must be contiguous"):
        gpu_heads.norm_heads(proj.to(DEVICE), torch.ones(1, 8, device=DEVICE).expand(2, -1), eps=1e-5)


def test_the_norm_of_zeros_is_zero_and_of_large_float16_values_finite() -> None:
    x = torch.zeros(2, 64, dtype=torch.float16, device=DEVICE)
    x[1] = 6e4
    out = torch.empty_like(x)
    norm.rms_norm(x, torch.ones_like(x[0]), out, eps=1e-5)
    assert not out[0].any()
    assert bool((out[1] == 1).all())


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**31), rows=st.integers(1, 3), ffn=st.sampled_from([48, 1000, 1024, 1536]),
    dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_the_gate_is_the_references(seed: int, rows: int, ffn: int, dtype: torch.dtype) -> None:
    gate_up, out = randn(seed, rows, 2 * ffn, dtype=dtype), strided(rows, ffn, dtype=dtype)
    gate.silu_gate(gate_up, out)
    close(out, gate_reference.silu_gate(gate_up.double()))


def test_the_gate_shuts_and_opens_without_overflow() -> None:
    gate_up = torch.tensor([[-1e30, -100.0, 0.0, 100.0, 3.0, 3.0, 3.0, 3.0]], device=DEVICE)
    out = torch.empty(1, 4, device=DEVICE)
    gate.silu_gate(gate_up, out)
    torch.testing.assert_close(out.cpu(), torch.tensor([[0.0, 0.0, 0.0, 300.0]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_references_are_what_torch_computes(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 64, dtype=dtype), torch.randn(64, dtype=dtype)
    close(norm_reference.rms_norm(x, weight, eps=1e-5), F.rms_norm(x.double(), (64,), weight.double(), 1e-5))
    one, other = x.double().chunk(2, -1)
    close(gate_reference.silu_gate(x), F.silu(one) * other)


def test_a_step_begins_with_one_more_tick_and_no_miss() -> None:
    counts = torch.full((5, 3), 7, dtype=torch.int32, device=DEVICE)
    tick = torch.tensor([2**31 - 2], dtype=torch.int32, device=DEVICE)
    step.begin_step(tick, counts[:, 1])
    assert tick.tolist() == [2**31 - 1]
    assert counts.tolist() == [[7, 0, 7]] * 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [32, 1100])
def test_embedding_skips_inactive_places_whatever_their_token(dtype: torch.dtype, hidden: int) -> None:
    table = randn(3, 9, hidden, dtype=dtype)
    token = torch.tensor([8, 2**60, 0], device=DEVICE)
    position = torch.tensor([0, -1, 4], dtype=torch.int32, device=DEVICE)
    out = strided(3, hidden, dtype=dtype)
    step.embed_tokens(token, position, table, out, scale=1.5)
    close(out, step_reference.embed_tokens(token, position, table.double(), scale=1.5))
    assert not out[1].any()


def test_advancing_moves_active_rows_alone() -> None:
    position = torch.tensor([0, -1, 41, 7], dtype=torch.int32, device=DEVICE)
    token, sampled = torch.tensor([1, 2, 3, 4], device=DEVICE), torch.tensor([10, 20, 30, 40], device=DEVICE)
    want = position.clone(), token.clone()
    step_reference.advance(*want, sampled)
    step.advance(position[:3], token[:3], sampled[:3])
    assert position.tolist() == [1, -1, 42, 7]
    assert token.tolist() == [10, 2, 30, 4]
    assert [t[:3].tolist() for t in want] == [[1, -1, 42], [10, 2, 30]]


def test_shapes_and_strides_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(2, 8, device=DEVICE)
    with pytest.raises(ConfigError, match=r"weight has shape \[7\]; want \[hidden=8\]"):
        norm.rms_norm(x, x[0, :7], x, eps=1e-5)
    with pytest.raises(ConfigError, match=r"gate_up has shape \[2, 8\]; want \[B=2, N=16\]"):
        gate.silu_gate(x, x)
    with pytest.raises(ConfigError, match="out has strides"):
        norm.rms_norm(x, x[0], torch.zeros(8, 2, device=DEVICE).t(), eps=1e-5)


def test_grids_cover_every_value() -> None:
    assert norm.grid(16) == (16,)
    assert gate.grid(16, 16384) == (16, 16)
    assert gate.grid(1, 1025) == (1, 2)
