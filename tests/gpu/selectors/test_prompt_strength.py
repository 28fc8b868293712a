"""Queries of a prompt stay on the GPU; what InfiniGen keeps of them lies on the CPU and is what a CPU's would say."""

from __future__ import annotations

import itertools

import pytest
import torch

from sparda_core.selectors.tensors.prompt_strength import PromptStrength
from tests.gpu_env import DEVICE, DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(0, 300), (0, 20, 33, 111, 300)])
def test_queries_on_a_gpu_count_as_they_do_on_a_cpu(dtype: torch.dtype, cuts: tuple[int, ...]) -> None:
    queries = torch.randn(8, 300, 16, generator=torch.Generator().manual_seed(4)).to(dtype)
    here = PromptStrength(limit=40, block=16, kv_heads=2).added(0, queries.float())
    there = PromptStrength(limit=40, block=16, kv_heads=2)
    for start, stop in itertools.pairwise(cuts):
        there = there.added(start, queries[:, start:stop].to(DEVICE))
    assert (there.counted, there.tail.count) == (here.counted, here.tail.count) == (40 + 15 * 16, 12)
    assert there.rotation is not None
    kept = [there.rotation, *(total for _, total in there.totals)]
    kept += [piece for _, piece in (*there.head.pieces, *there.tail.pieces)]
    assert {part.device.type for part in kept} == {"cpu"}
    torch.testing.assert_close(there.totals[-1][1], here.totals[-1][1])
    like = queries.to(DEVICE)
    made = there.projection(like, channels=5)
    assert (made.device, made.dtype) == (like.device, dtype)
    torch.testing.assert_close(made.cpu(), here.projection(queries, channels=5))
