"""Float8: codes and scales bit for bit, blocks that a step closes, and what it does to attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.attend.reference import attend_blocks
from sparda_core.kernels.quantise.reference import dequantise_blocks, quantise_blocks
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.kernels.quantise.gpu import from_e4m3, has_e4m3, quantise_closed, to_e4m3
from sparda_core.kernels.tables import Paged
from tests.gpu.attend.cases import NAN, generator, relative_error

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
WAYS = [False, True] if has_e4m3(DEVICE) else [False]


@triton.jit  # type: ignore[untyped-decorator]
def _convert(values: Any, codes: Any, back: Any, count: Any, NATIVE: tl.constexpr, SIZE: tl.constexpr) -> None:
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    code = to_e4m3(tl.load(values + at, mask=at < count, other=0.0), NATIVE)
    tl.store(codes + at, code, mask=at < count)
    tl.store(back + at, from_e4m3(code, NATIVE), mask=at < count)


def _edges() -> torch.Tensor:
    """Every code's value, the midpoint of each pair, and the floats beside both; then random ones."""
    values = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (values[1:] + values[:-1]) / 2
    some = torch.cat([values, middle, torch.tensor([464.0, 1e30, 1e-30, 1e-42, torch.inf])])
    beside = [some, some.nextafter(torch.tensor(torch.inf)), some.nextafter(torch.tensor(0.0))]
    noise = torch.randn(5000, generator=generator(1)) * 2.0 ** torch.randint(-12, 9, (5000,), generator=generator(2))
    every = torch.cat([*beside, noise, torch.tensor([NAN])])
    return torch.cat([every, -every])


@pytest.mark.parametrize("native", WAYS)
def test_codes_are_torchs_bit_for_bit(*, native: bool) -> None:
    values = _edges()
    want = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    codes = torch.full((values.numel(),), 0xAA, dtype=torch.uint8, device=DEVICE)
    back = torch.full((values.numel(),), 7.0, device=DEVICE)
    grid = (triton.cdiv(values.numel(), 1024),)
    _convert[grid](values.to(DEVICE), codes, back, values.numel(), NATIVE=native, SIZE=1024)
    expected = want.view(torch.uint8).masked_fill(values.isnan(), 0x7F)
    assert torch.equal(codes.cpu(), expected)
    assert torch.equal(back.cpu().nan_to_num(nan=9.0), want.float().nan_to_num(nan=9.0))


def test_a_block_comes_back_within_half_a_step_of_its_scale() -> None:
    blocks = torch.randn(3, 2, 16, 32, generator=generator(4)) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None, None]
    codes, scales = quantise_blocks(blocks)
    assert torch.equal(scales, blocks.abs().amax(dim=(2, 3)) / 448)
    wrong = (dequantise_blocks(codes, scales, torch.float32) - blocks).abs()
    assert (wrong <= torch.maximum(blocks.abs() / 16, scales[:, :, None, None] * 2**-10) * 1.0001).all()


def test_zeros_infinities_and_nan_are_kept_in_bounds() -> None:
    blocks = torch.zeros(1, 2, 16, 32)
    blocks[0, 1, 0, :4] = torch.tensor([torch.inf, -torch.inf, NAN, 2.0])
    codes, scales = quantise_blocks(blocks)
    assert scales[0, 0] == 1
    assert not codes[0, 0].any()
    back = dequantise_blocks(codes, scales, torch.float32)[0, 1, 0, :4]
    assert back[:2].tolist() == [2.0, -2.0]
    assert back[2].isnan()
    assert back[3] == 2.0


def _closing(dtype: torch.dtype, page_blocks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Paged]:
    """Rows at: last token of block 1, mid-block, nobody, last token of block 0. Codes of nothing yet: 0xAA."""
    position = torch.tensor([31, 30, -1, 15], dtype=torch.int32)
    array = torch.randn(9, 2, 16, 36, generator=generator(5)).to(dtype)
    array[3, 0, 2, 3], array[3, 1] = torch.inf, 0
    tail = torch.tensor([[3, 5], [0, 1], [-1, -1], [8, 2]], dtype=torch.int32)
    pages = torch.randperm(16, generator=generator(6))[: 4 * 2 * 2].reshape(4, 2, 2).to(torch.int32)
    codes = torch.full((16 * page_blocks, 2, 16, 36), 0xAA, dtype=torch.uint8)
    host = Paged(
        array=codes.pin_memory() if DEVICE.type == "cuda" else codes, table=pages.to(DEVICE), page_blocks=page_blocks,
        scales=torch.full((16 * page_blocks, 2), NAN, device=DEVICE),
    )  # fmt: skip
    return array, tail, position, host


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_blocks", [1, 4])
def test_a_full_block_goes_to_its_host_block_and_others_write_nothing(dtype: torch.dtype, page_blocks: int) -> None:
    array, tail, position, host = _closing(dtype, page_blocks)
    table = host.table.cpu()
    want_codes, want_scales = host.array.clone(), torch.full(host.array.shape[:2], NAN)
    for row, block in ((0, 1), (3, 0)):
        for head in range(2):
            at = int(table[row, head, block // page_blocks]) * page_blocks + block % page_blocks
            codes, scales = quantise_blocks(array[tail[row, head]][None])
            want_codes[at], want_scales[at] = codes[0], scales[0]
    quantise_closed(array.to(DEVICE), tail.to(DEVICE), position.to(DEVICE), host, SPEC)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(host.array, want_codes)
    assert host.scales is not None
    assert torch.equal(host.scales.cpu().nan_to_num(nan=-1), want_scales.nan_to_num(nan=-1))


def test_a_host_copy_without_scales_is_refused() -> None:
    array, tail, position, host = _closing(torch.float32, 1)
    bare = Paged(array=host.array, table=host.table, page_blocks=1)
    with pytest.raises(ConfigError, match="must hold uint8 codes and have scales"):
        quantise_closed(array.to(DEVICE), tail.to(DEVICE), position.to(DEVICE), bare, SPEC)


def test_attention_over_float8_blocks_is_off_by_about_four_per_cent() -> None:
    stream = generator(7)
    pool = torch.randn(96, 2, 64, 128, generator=stream, dtype=torch.float64)
    query = torch.randn(1, 16, 1, 128, generator=stream, dtype=torch.float64)
    physical = torch.arange(96)[None, None, None]
    tokens = torch.full(physical.shape, 64, dtype=torch.int32)
    exact = attend_blocks(query, pool, physical, tokens)
    codes, scales = quantise_blocks(pool)
    rounded = dequantise_blocks(codes, scales, torch.float32).double()
    wrong = relative_error(attend_blocks(query, rounded, physical, tokens), exact)
    assert 0.033 < wrong < 0.045
