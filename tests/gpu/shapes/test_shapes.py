"""Append, scores, choice, copies and attention by kernels in every shape of the table, against float64 references.

Interpreted, each case keeps its head size, group and cut, and gives up rows and KV heads, which are programs of a
grid: on a GPU it keeps them all.
"""

from __future__ import annotations

import attrs
import pytest
import torch

from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.device_view import Choice
from sparda_core.kernels.append.store import FusedHeads
from sparda_core.kernels.attend.gpu import attend_scratch, attend_slots
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.kernels.topk.reference import choose_blocks as choose_reference
from tests.gpu.append.launch import launch_is_right
from tests.gpu.append.worlds import World
from tests.gpu.attend.cases import NAN, TOLERANCE, make_rows, relative_error, widened
from tests.gpu.score.cases import TOLERANCE as SCORE_TOLERANCE
from tests.gpu.score.cases import as_view, assert_scores, entry_counts, keys, poisoned, positions, randn
from tests.properties.shapes import TABLE, Shape

ON_GPU = DEVICE.type == "cuda"


def here(shape: Shape) -> Shape:
    """What of a case this machine tries: all of it on a GPU."""
    if ON_GPU:
        return shape
    tokens = sorted(range(len(shape.edges)), key=lambda at: shape.tokens[at])
    two = sorted({tokens[0], tokens[len(tokens) // 2]})
    return attrs.evolve(shape, kv_heads=1 + shape.kv_heads % 2, edges=tuple(shape.edges[at] for at in two))


CASES = pytest.mark.parametrize("shape", [here(shape) for shape in TABLE], ids=[str(shape) for shape in TABLE])
#: Half precision takes the same code; a GPU shows its arithmetic.
KINDS = pytest.mark.parametrize("dtype", DTYPES if ON_GPU else DTYPES[:1], ids=str)


@KINDS
@CASES
def test_attention_of_any_shape(shape: Shape, dtype: torch.dtype) -> None:
    at, spec = [tokens - 1 for tokens in shape.tokens], shape.spec
    rows = make_rows(
        shape.seed, at, spec=spec, heads=shape.kv_heads, group=shape.group, width=shape.head_dim, dtype=dtype
    )
    physical, counts = rows.table(spec.budget, as_places=True)
    scratch = attend_scratch(
        places=len(at), q_heads=rows.q.shape[1], kv_heads=shape.kv_heads, head_dim=shape.head_dim, blocks=spec.budget,
        block=spec.block, dtype=dtype, device=DEVICE,
    )  # fmt: skip
    out = widened(torch.full(rows.q.shape, NAN), dtype)
    attend_slots(
        widened(rows.q, dtype), widened(rows.array, dtype), physical, counts, rows.position(), spec, out, scratch
    )
    assert torch.isfinite(out).all()
    want = rows.expected()
    if want.abs().sum() > 0:
        assert relative_error(out, want) < TOLERANCE[dtype]
    assert all((out[row] == 0).all() for row, position in enumerate(at) if position < 0)


@CASES
def test_scores_and_choice_of_any_shape(shape: Shape) -> None:
    at, spec = [tokens - 1 for tokens in shape.tokens], shape.spec
    counts = entry_counts(at, spec, 0)
    entries = keys(shape.seed, counts, shape.kv_heads, shape.head_dim, torch.float32)
    query = randn(shape.seed + 50, len(at), shape.kv_heads * shape.group, shape.head_dim)
    forecast = query[:, :: shape.group]
    place = torch.tensor(at)[:, None].to(DEVICE)
    room = poisoned(len(at), shape.kv_heads + 1, spec.block_count(max(at) + 1) + 3)
    by_forecast, by_query = room[:, :-1].clone(), room[:, :-1].clone()
    forecast_block_scores(forecast, entries, positions(at), spec, 0, by_forecast)
    want = forecast_reference(forecast[:, :, None].double(), as_view(entries, counts), place, spec)
    assert_scores(by_forecast, want, at, spec.block, SCORE_TOLERANCE) if max(counts) else None
    scratch = query_scratch(
        places=len(at), q_heads=query.shape[1], kv_heads=shape.kv_heads, entries=entries.shape[2], device=DEVICE
    )
    query_block_scores(query, entries, positions(at), spec, 0, by_query, scratch)
    want = query_reference(query[:, :, None].double(), as_view(entries, counts), place, spec)
    assert_scores(by_query, want, at, spec.block, SCORE_TOLERANCE) if max(counts) else None
    choice = Choice(
        blocks=torch.full((len(at), shape.kv_heads, spec.budget), -7, dtype=torch.int32, device=DEVICE),
        counts=torch.full((len(at), shape.kv_heads), -7, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    choose_blocks(by_forecast, positions(at), spec, choice)
    chosen = choose_reference(by_forecast[:, :, None].cpu(), place.cpu(), spec)[:, :, 0]
    assert torch.equal(choice.blocks.cpu(), chosen)
    assert torch.equal(choice.counts.cpu(), (chosen >= 0).sum(-1).int())


@KINDS
@pytest.mark.parametrize("where", ["pages", "slots"])
@CASES
def test_new_tokens_of_any_shape(shape: Shape, where: str, dtype: torch.dtype) -> None:
    heads = FusedHeads(
        q=shape.kv_heads * shape.group, kv=shape.kv_heads, has_next=shape.seed % 3 != 0, has_own=shape.seed % 2 == 0
    )
    places = [tokens - 1 for tokens in shape.tokens]
    world = World(
        heads=heads, size=shape.head_dim, spec=shape.spec, places=places, dtype=dtype, seed=shape.seed
    )  # fmt: skip
    launch_is_right(world, where, host=True)


@KINDS
@CASES
def test_copied_blocks_of_any_shape(shape: Shape, dtype: torch.dtype) -> None:
    """In any order, to the bit; what is not listed stays as it was."""
    size, stream = (2, shape.block, shape.head_dim), torch.Generator().manual_seed(shape.seed)
    source = torch.randn(7, *size, generator=stream).to(dtype)
    listed = torch.randperm(7, generator=stream)[:4].int()
    places = torch.randperm(9, generator=stream)[:4].int()
    target = torch.full((9, *size), NAN, dtype=dtype, device=DEVICE)
    want = target.cpu()
    want[places.long()] = source[listed.long()]
    gather_blocks(
        source.pin_memory() if ON_GPU else source, target, listed.to(DEVICE), places.to(DEVICE),
        torch.tensor([4], dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    torch.testing.assert_close(target.cpu(), want, rtol=0, atol=0, equal_nan=True)
