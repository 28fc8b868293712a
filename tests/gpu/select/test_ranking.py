"""The k best of a tile: as many as asked, each with a place of its own."""

from __future__ import annotations

import pytest
import torch

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
import triton
import triton.language as tl

from sparda_core.kernels.topk.gpu_ranking import NEVER, take_best
from tests.gpu.select.cases import generator


# Triton's compiler reads annotations, too, and knows its own alone.
@triton.jit  # type: ignore[untyped-decorator]
def _take_kernel(keys, k, candidates, taken, place, N: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = tl.arange(0, N)
    key = tl.load(keys + at)
    best, rank = take_best(key, k, candidates, N)
    tl.store(taken + at, best.to(tl.int32))
    tl.store(place + at, rank)


@pytest.mark.parametrize("size", [16, 64, 1024])
@pytest.mark.parametrize("values", [3, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_exactly_k_are_taken_in_order_of_key_then_index(size: int, values: int, share: float) -> None:
    made = generator(size + values)
    key = torch.randint(-values, values, (size,), generator=made, dtype=torch.int32)
    key[torch.rand(size, generator=made) < 0.3] = NEVER.value
    candidates = int((key != NEVER.value).sum())
    k = round(share * candidates)
    taken, place = (torch.full((size,), -7, dtype=torch.int32, device=DEVICE) for _ in range(2))
    _take_kernel[(1,)](key.to(DEVICE), k, candidates, taken, place, N=size)
    want = sorted(sorted(range(size), key=lambda i: (-int(key[i]), i))[:k])
    assert taken.cpu().nonzero().flatten().tolist() == want
    assert place.cpu()[want].tolist() == list(range(k))
