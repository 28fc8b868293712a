"""The copy kernel: every block of the list arrives whole, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.runs import CopyTuning, cut_runs
from sparda_core.kernels.quantise.reference import dequantise_blocks, quantise_blocks
from tests.gpu.attend.cases import NAN, generator

ON_GPU = DEVICE.type == "cuda"


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if ON_GPU else tensor


def _lists(seed: int, source: int, target: int, count: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids; those behind the count are addresses of nothing."""
    stream = generator(seed)
    source_ids = torch.full((most,), 2**30, dtype=torch.int32)
    target_ids = torch.full((most,), -(2**30), dtype=torch.int32)
    source_ids[:count] = torch.randint(0, source, (count,), generator=stream, dtype=torch.int32)
    target_ids[:count] = torch.randperm(target, generator=stream)[:count].to(torch.int32)
    return source_ids.to(DEVICE), target_ids.to(DEVICE)


def _count(count: int) -> torch.Tensor:
    return torch.tensor([count], dtype=torch.int32, device=DEVICE)


def _same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.cpu().contiguous().view(torch.uint8), want.cpu().contiguous().view(torch.uint8))


@given(
    seed=st.integers(0, 2**31),
    block=st.sampled_from([16, 20, 48]),
    width=st.sampled_from([32, 36, 60]),
    count=st.integers(0, 7),
    ctas=st.sampled_from([1, 2, 3]),
    in_flight=st.sampled_from([1, 8, 64, 128]),
    parts=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=15 if DEVICE.type == "cpu" else 25)
def test_the_listed_blocks_arrive_and_others_stay(
    seed: int, block: int, width: int, count: int, ctas: int, in_flight: int, parts: int, dtype: torch.dtype
) -> None:
    stream = generator(seed)
    source = torch.randn(5, 2, block, width, generator=stream).to(dtype)
    target = torch.full((9, 2, block, width), NAN, dtype=dtype, device=DEVICE)
    source_ids, target_ids = _lists(seed, 5, 9, count, most=8)
    want = target.cpu().clone()
    want[target_ids[:count].cpu().long()] = source[source_ids[:count].cpu().long()]
    gather_blocks(
        _pinned(source), target, source_ids, target_ids, _count(count), ctas=ctas, in_flight_bytes=in_flight * 1024,
        tuning=CopyTuning(parts=parts),
    )  # fmt: skip
    assert _same_bits(target, want)


def test_a_count_beyond_the_list_ends_with_the_list() -> None:
    source = _pinned(torch.randn(3, 2, 16, 32, generator=generator(1)))
    target = torch.full((4, 2, 16, 32), NAN, device=DEVICE)
    source_ids, target_ids = _lists(1, 3, 4, count=2, most=2)
    gather_blocks(source, target, source_ids, target_ids, _count(100))
    assert torch.equal(target[target_ids.long()].cpu(), source[source_ids.long().cpu()])
    assert int(target.isnan().all(dim=-1).all(dim=-1).all(dim=-1).sum()) == 2


def test_blocks_may_lie_apart() -> None:
    source = _pinned(torch.randn(3, 4, 16, 32, generator=generator(2)))[:, :2]
    target = torch.full((4, 3, 16, 32), NAN, device=DEVICE)
    source_ids, target_ids = _lists(2, 3, 4, count=3, most=3)
    gather_blocks(source, target[:, :2], source_ids, target_ids, _count(3), in_flight_bytes=4096)
    assert torch.equal(target[target_ids.long(), :2].cpu(), source[source_ids.long().cpu()])
    assert target[:, 2].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block", "width", "in_flight"), [(16, 32, 1), (20, 36, 4), (16, 60, 128)])
@pytest.mark.parametrize("parts", [1, 4])
def test_float8_blocks_are_widened_on_the_way(
    dtype: torch.dtype, block: int, width: int, in_flight: int, parts: int
) -> None:
    stream = generator(3)
    blocks = torch.randn(4, 2, block, width, generator=stream) * torch.tensor([1e-3, 40.0])[:, None, None]
    blocks[0, 0] = 0
    codes, scales = quantise_blocks(blocks)
    codes.view(-1)[:256] = torch.arange(256, dtype=torch.uint8)  # every code, NaN among them
    target = torch.full((6, 2, block, width), NAN, dtype=dtype, device=DEVICE)
    source_ids, target_ids = _lists(3, 4, 6, count=5, most=6)
    source_ids[0] = 0
    want = target.cpu().clone()
    want[target_ids[:5].cpu().long()] = dequantise_blocks(codes, scales, dtype)[source_ids[:5].cpu().long()]
    gather_blocks(
        _pinned(codes), target, source_ids, target_ids, _count(5), ctas=2, in_flight_bytes=in_flight * 1024,
        scales=scales.to(DEVICE), tuning=CopyTuning(parts=parts),
    )  # fmt: skip
    assert torch.equal(target.isnan().cpu(), want.isnan())
    assert torch.equal(target.nan_to_num().cpu(), want.nan_to_num())


@given(block_bytes=st.integers(1, 40000).map(lambda n: 16 * n), power=st.integers(10, 17),
       parts=st.sampled_from([1, 2, 4]))  # fmt: skip
def test_runs_cover_a_block_and_fill_what_is_in_flight(block_bytes: int, power: int, parts: int) -> None:
    runs = cut_runs(block_bytes, 1 << power, tuning=CopyTuning(parts=parts))
    assert (runs.per_block - 1) * runs.run < runs.words == block_bytes // 4 <= runs.per_block * runs.run
    assert runs.run * runs.rows * runs.parts * 4 == 1 << power
    assert runs.run & (runs.run - 1) == 0
    assert 32 <= (1 << power) / runs.warps / 32 <= 128


def test_settings_that_no_thread_block_can_hold_are_refused() -> None:
    source, target = _pinned(torch.zeros(2, 2, 16, 32)), torch.zeros(2, 2, 16, 32, device=DEVICE)
    ids = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ConfigError, match="in_flight_bytes=262144 must be a power of two"):
        gather_blocks(source, target, ids, ids, _count(1), in_flight_bytes=262144)
    with pytest.raises(ConfigError, match="in_flight_bytes=3000"):
        gather_blocks(source, target, ids, ids, _count(1), in_flight_bytes=3000)
    with pytest.raises(ConfigError, match="ctas=0"):
        gather_blocks(source, target, ids, ids, _count(1), ctas=0)
    with pytest.raises(ConfigError, match="one dtype"):
        gather_blocks(source.half(), target, ids, ids, _count(1))
    with pytest.raises(ConfigError, match="one contiguous run"):
        gather_blocks(source.transpose(2, 3).contiguous().transpose(2, 3), target, ids, ids, _count(1))
    with pytest.raises(ConfigError, match="int32"):
        gather_blocks(source, target, ids.long(), ids, _count(1))
    with pytest.raises(ConfigError, match="parts=3 must be 1, 2 or 4"):
        cut_runs(64, 1024, tuning=CopyTuning(parts=3))
    with pytest.raises(ConfigError, match="a block has 72 bytes"):
        cut_runs(72, 1024)


@pytest.mark.gpu
def test_pageable_memory_is_refused() -> None:
    ids = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ConfigError, match="pin it"):
        gather_blocks(torch.zeros(2, 2, 16, 32), torch.zeros(2, 2, 16, 32, device=DEVICE), ids, ids, _count(1))
