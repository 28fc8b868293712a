"""Decode attention on a GPU against the float64 reference: found by slot, by page, and everything."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import AttendScratch, attend_pages, attend_scratch, attend_slots
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.attend_dense.gpu import attend_all
from sparda_core.kernels.tables import Paged
from tests.gpu.attend.cases import NAN, TOLERANCE, Rows, make_rows, relative_error, widened

SMALL = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)


def _scratch(rows: Rows, *, blocks: int, places: int | None = None, **tuning: int | None) -> AttendScratch:
    return attend_scratch(
        places=places or len(rows.positions), q_heads=rows.q.shape[1], kv_heads=rows.heads, head_dim=rows.q.shape[2],
        blocks=blocks, block=rows.spec.block, dtype=rows.dtype, device=DEVICE,
        tuning=Tuning(**tuning),  # type: ignore[arg-type]
    )  # fmt: skip


def _by_slots(rows: Rows, scratch: AttendScratch | None = None, **tuning: int | None) -> torch.Tensor:
    width = rows.spec.budget + 1
    physical, counts = rows.table(width, as_places=True)
    out = widened(torch.full(rows.q.shape, NAN), rows.dtype)
    attend_slots(
        widened(rows.q, rows.dtype), widened(rows.array, rows.dtype), physical, counts, rows.position(), rows.spec, out,
        scratch or _scratch(rows, blocks=width, **tuning), bias=_bias(rows),
        logical=None if rows.bias is None else rows.table(width, as_places=False)[0],
    )  # fmt: skip
    return out


def _bias(rows: Rows) -> torch.Tensor | None:
    return None if rows.bias is None else widened(rows.bias, torch.float32)


def _paged(rows: Rows, page_blocks: int, pages: int) -> Paged:
    table = torch.full((len(rows.positions), rows.heads, pages), -1, dtype=torch.int32)
    for row, heads in enumerate(rows.places):
        for head, places in enumerate(heads):
            firsts = [place // page_blocks for place in places[::page_blocks]]
            table[row, head, : len(firsts)] = torch.tensor(firsts, dtype=torch.int32)
    array = rows.array.to(rows.dtype).to(DEVICE)
    return Paged(array=array, table=table.to(DEVICE), page_blocks=page_blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("splits", "fused_up_to"), [(1, 8), (3, 8), (3, 1)])
def test_rows_attend_to_the_blocks_in_their_slots(dtype: torch.dtype, splits: int, fused_up_to: int) -> None:
    rows = make_rows(1, [90, -1, 0, 63], spec=SMALL, heads=2, group=2, width=32, dtype=dtype)
    got = _by_slots(rows, splits=splits, fused_up_to=fused_up_to)
    assert relative_error(got, rows.expected()) < TOLERANCE[dtype]
    assert (got[1] == 0).all()


def _pieces_agree(rows: Rows) -> None:
    whole = _by_slots(rows, splits=1)
    for tuning in ({"splits": 2, "fused_up_to": 1}, {"splits": 4, "fused_up_to": 4}, {"splits": None}):
        assert relative_error(_by_slots(rows, **tuning), whole.double().cpu()) < TOLERANCE[rows.dtype]


def test_any_number_of_pieces_gives_the_same_output() -> None:
    spec = BlockSpec(block=64, window=32, stride=16, sink=1, local=1, budget=4)
    _pieces_agree(make_rows(2, [300, 64], spec=spec, heads=1, group=3, width=64, dtype=torch.float32))


@given(
    seed=st.integers(0, 2**31),
    block=st.sampled_from([16, 20, 48, 128]),
    group=st.sampled_from([1, 5, 17]),
    width=st.sampled_from([32, 36, 80, 256]),
    splits=st.sampled_from([1, 2, 5]),
    positions=st.lists(st.integers(-1, 200), min_size=1, max_size=2),
)
@settings(max_examples=8 if DEVICE.type == "cpu" else 12)
def test_blocks_groups_and_heads_of_any_size_are_right(
    seed: int, block: int, group: int, width: int, splits: int, positions: list[int]
) -> None:
    spec = BlockSpec(block=block, window=8, stride=4, sink=1, local=1, budget=4)
    rows = make_rows(seed, positions, spec=spec, heads=1, group=group, width=width, dtype=torch.float32)
    assert relative_error(_by_slots(rows, splits=splits), rows.expected()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block", "splits", "fused_up_to"), [(16, 1, 8), (16, 3, 1), (20, 3, 8), (128, 1, 8)])
def test_a_bias_is_added_to_the_logits_of_its_tokens(
    dtype: torch.dtype, block: int, splits: int, fused_up_to: int
) -> None:
    spec = BlockSpec(block=block, window=8, stride=4, sink=1, local=1, budget=4)
    rows = make_rows(8, [150, -1, 0, 63], spec=spec, heads=2, group=2, width=32, dtype=dtype).biased(2)
    got = _by_slots(rows, splits=splits, fused_up_to=fused_up_to)
    assert relative_error(got, rows.expected()) < TOLERANCE[dtype]
    assert (got[1] == 0).all()
    assert relative_error(got, attrs.evolve(rows, bias=None).expected()) > 10 * TOLERANCE[dtype]


def test_a_bias_lies_by_token_wherever_its_block_does() -> None:
    rows = make_rows(9, [100, 15, -1], spec=SMALL, heads=2, group=2, width=32, dtype=torch.float32, page_blocks=3)
    rows = rows.biased(4)
    blocks, counts = rows.table(SMALL.budget, as_places=False)
    q, paged, at = rows.q.to(rows.dtype).to(DEVICE), _paged(rows, 3, 9), rows.position()
    out, choice = torch.full_like(q, NAN), Choice(blocks=blocks, counts=counts)
    attend_pages(q, paged, choice, at, SMALL, out, _scratch(rows, blocks=SMALL.budget, splits=2), bias=_bias(rows))
    assert relative_error(out, rows.expected()) < TOLERANCE[rows.dtype]
    attend_all(q, paged, at, SMALL, out, _scratch(rows, blocks=27, splits=2), bias=_bias(rows))
    assert relative_error(out, rows.expected(everything=True)) < TOLERANCE[rows.dtype]


def test_a_bias_that_does_not_fit_is_refused() -> None:
    rows = make_rows(9, [20], spec=SMALL, heads=1, group=2, width=32, dtype=torch.float32).biased(4)
    physical, counts = rows.table(4, as_places=True)
    q, bias = rows.q.to(rows.dtype).to(DEVICE), _bias(rows)
    assert bias is not None
    given = (q, rows.array.to(rows.dtype).to(DEVICE), physical, counts, rows.position(), SMALL, q)
    scratch = _scratch(rows, blocks=4)
    with pytest.raises(ConfigError, match="give the logical ids"):
        attend_slots(*given, scratch, bias=bias)
    with pytest.raises(ConfigError, match=r"bias is torch\.float16"):
        attend_slots(*given, scratch, bias=bias.half(), logical=physical)
    with pytest.raises(ConfigError, match="bias has shape"):
        attend_slots(*given, scratch, bias=bias[:, :0], logical=physical)


@pytest.mark.parametrize("page_blocks", [1, 3])
def test_resident_rows_attend_through_their_pages(page_blocks: int) -> None:
    rows = make_rows(
        3, [100, 15, -1], spec=SMALL, heads=2, group=2, width=32, dtype=torch.float32, page_blocks=page_blocks
    )
    blocks, counts = rows.table(SMALL.budget, as_places=False)
    out = torch.full(rows.q.shape, NAN, dtype=rows.dtype, device=DEVICE)
    attend_pages(
        rows.q.to(rows.dtype).to(DEVICE), _paged(rows, page_blocks, 9), Choice(blocks=blocks, counts=counts),
        rows.position(), SMALL, out, _scratch(rows, blocks=SMALL.budget, splits=2),
    )  # fmt: skip
    assert relative_error(out, rows.expected()) < TOLERANCE[rows.dtype]


@pytest.mark.parametrize("splits", [1, 4])
def test_dense_rows_attend_to_everything_up_to_their_token(splits: int) -> None:
    rows = make_rows(4, [100, 15, -1, 16], spec=SMALL, heads=1, group=3, width=32, dtype=torch.float32, page_blocks=2)
    out = torch.full(rows.q.shape, NAN, dtype=rows.dtype, device=DEVICE)
    attend_all(
        rows.q.to(rows.dtype).to(DEVICE), _paged(rows, 2, 5), rows.position(), SMALL, out,
        _scratch(rows, blocks=10, splits=splits),
    )  # fmt: skip
    assert relative_error(out, rows.expected(everything=True)) < TOLERANCE[rows.dtype]


def test_the_check_notices_one_token_too_many() -> None:
    rows = make_rows(5, [40], spec=SMALL, heads=1, group=1, width=32, dtype=torch.float32)
    assert relative_error(_by_slots(rows), rows.expected()) < TOLERANCE[rows.dtype]
    shifted = make_rows(5, [40], spec=SMALL, heads=1, group=1, width=32, dtype=torch.float32)
    shifted.positions[0] = 39
    assert relative_error(_by_slots(rows), shifted.expected()) > 100 * TOLERANCE[rows.dtype]


def test_scratch_is_used_again_and_again_and_by_fewer_rows() -> None:
    rows = make_rows(6, [50, 70], spec=SMALL, heads=1, group=2, width=32, dtype=torch.float32)
    scratch = _scratch(rows, blocks=SMALL.budget + 1, places=4, splits=2)
    first = _by_slots(rows, scratch)
    assert torch.equal(first, _by_slots(rows, scratch))
    assert (scratch.arrived == 0).all()


def test_what_does_not_fit_is_refused() -> None:
    rows = make_rows(7, [50, 70], spec=SMALL, heads=1, group=2, width=256, dtype=torch.float32)
    small = attend_scratch(
        places=1, q_heads=2, kv_heads=1, head_dim=256, blocks=5, block=16, dtype=rows.dtype, device=DEVICE,
        tuning=Tuning(splits=2),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="pass the most places and blocks"):
        _by_slots(rows, small)
    physical, counts = rows.table(4, as_places=True)
    q, array = rows.q.to(rows.dtype).to(DEVICE), rows.array.to(rows.dtype).to(DEVICE)
    with pytest.raises(ConfigError, match="int32"):
        attend_slots(q, array, physical.long(), counts, rows.position(), SMALL, q, small)
    with pytest.raises(ConfigError, match="one float dtype"):
        attend_slots(q, array.half(), physical, counts, rows.position(), SMALL, q, small)
    with pytest.raises(ConfigError, match="array has shape"):
        attend_slots(q, array[:, :, :8], physical, counts, rows.position(), SMALL, q, small)
