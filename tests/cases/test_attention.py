"""Attention kernels: the kinds of fault that others met, and what happens here (docs/cases.md, B)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE, DTYPES

# isort: split
from triton.runtime.interpreter import GridExecutor

from sparda_core.kernels.append.gpu import append_tokens
from sparda_core.kernels.append.store import Store
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.kernels.attend.gpu import attend_scratch, attend_slots
from sparda_core.kernels.attend.reference import attend_blocks as attend_reference
from sparda_core.kernels.attend.splitting import MOST_SPLITS, Tuning
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.runtimes.gpu.pinning import pinned_empty
from sparda_core.selection import check_selection
from sparda_core.testing.dense_row import DenseRow
from tests.agreement.worlds import MODEL, SHAPE, SPEC, TOKENS, pair
from tests.cases.poison import poison_what_no_row_owns
from tests.gpu.attend.cases import NAN, TOLERANCE, Rows, make_rows, relative_error, widened
from tests.gpu.attend.far import APART
from tests.gpu.attend.test_attend_gpu import _by_slots
from tests.gpu.score.cases import SMALL as SCORED
from tests.gpu.score.cases import TOLERANCE as SCORE_TOLERANCE
from tests.gpu.score.cases import as_view, assert_scores, entry_counts, randn
from tests.gpu.score.test_scores import place, room_for, score

ROOT = Path(__file__).parents[2]
SMALL = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works on CPU tensors in place, and then copies each whole storage back: gigabytes of nothing."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda self, *args: None)


def _lists(leading: int) -> tuple[torch.Tensor, ...]:
    """One query whose first `leading` entries of the list name no block; the pool is NaN where nothing is listed."""
    made = torch.Generator().manual_seed(leading)
    pool = torch.full((9, 2, 16, 32), NAN, dtype=torch.float64)
    physical = torch.tensor([-1] * leading + [3, 5, 7])
    pool[physical[leading:]] = torch.randn(3, 2, 16, 32, generator=made, dtype=torch.float64)
    tokens = torch.tensor([16] * leading + [16, 16, 3])
    pool[7, :, 3:] = NAN
    query = torch.randn(1, 2, 1, 32, generator=made, dtype=torch.float64)
    return query, pool, physical[None, None, None], tokens[None, None, None]


@pytest.mark.parametrize("leading", [1, 5, 40])
def test_places_without_a_block_ahead_of_the_list_change_nothing(leading: int) -> None:
    query, pool, physical, tokens = _lists(leading)
    got = attend_blocks(query, pool, physical, tokens)
    torch.testing.assert_close(got, attend_reference(query, pool, physical[..., leading:], tokens[..., leading:]))
    assert got.isfinite().all()


def test_no_selection_may_begin_with_a_place_without_a_block() -> None:
    ids = np.array([[[[-1, 0, 1, 2, 3]]]], np.int32)
    with pytest.raises(ConfigError):
        check_selection(ids, spec=SPEC, positions=np.array([[31]]))


@pytest.mark.parametrize("guard", [NAN, float("inf")])
def test_minus_one_is_never_an_address(guard: float) -> None:
    """Pools between guards: what lies before entry 0 and behind the last one would show in the sum."""
    query, pool, physical, tokens = _lists(3)
    room = torch.full((11, 2, 16, 32), guard, dtype=torch.float64)
    room[1:10] = pool
    for guarded in (room[1:10], room[1:10].float()):
        got = attend_blocks(query.to(guarded.dtype), guarded, physical, tokens)
        torch.testing.assert_close(got.double(), attend_reference(query, pool, physical, tokens), rtol=1e-5, atol=1e-5)


def test_a_copy_whose_list_is_empty_or_padded_with_minus_one_stays_inside_its_tables() -> None:
    source, room = torch.randn(3, 2, 16, 32), torch.full((6, 2, 16, 32), NAN)
    target = room[1:5].to(DEVICE)
    ids = torch.tensor([2, 0, -1, -1], dtype=torch.int32, device=DEVICE)
    held = source.pin_memory() if DEVICE.type == "cuda" else source
    for count in (0, 2):
        gather_blocks(held, target, ids, ids.clone(), torch.tensor([count], dtype=torch.int32, device=DEVICE))
        written = (~target.isnan()).flatten(1).all(1).cpu()
        assert written.tolist() == [count == 2, False, count == 2, False]


@pytest.mark.parametrize("splits", [1, 7, MOST_SPLITS])
@pytest.mark.parametrize("fused_up_to", [1, 8])
def test_more_pieces_than_blocks_leave_empty_pieces_out_of_the_sum(splits: int, fused_up_to: int) -> None:
    rows = make_rows(3, [0, -1, 15, 40], spec=SMALL, heads=1, group=2, width=32, dtype=torch.float32)
    got = _by_slots(rows, splits=splits, fused_up_to=fused_up_to, tokens=16)
    assert relative_error(got, rows.expected()) < TOLERANCE[torch.float32]
    assert (got[1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_error_does_not_grow_with_the_number_of_pieces(dtype: torch.dtype) -> None:
    """Partial results in the dtype of the inputs would round once a piece."""
    spec = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=20)
    rows = make_rows(5, [20 * 16 - 1], spec=spec, heads=1, group=2, width=32, dtype=dtype)
    errors = [
        relative_error(_by_slots(rows, splits=splits, fused_up_to=1, tokens=16), rows.expected())
        for splits in (1, 4, 20)
    ]
    assert max(errors) <= 1.5 * errors[0] + 1e-6
    scratch = attend_scratch(
        places=1, q_heads=2, kv_heads=1, head_dim=32, blocks=20, block=16, dtype=dtype, device=DEVICE
    )
    assert scratch.mixed.dtype == scratch.stats.dtype == torch.float32


def _dots(text: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.dot", "tl.dot_scaled"):
            yield node


def _unsaid(text: str) -> list[str]:
    """Products that leave their precision, or what they add up in, to the compiler's default."""
    said = {ast.unparse(dot): {word.arg for word in dot.keywords} for dot in _dots(text)}
    return [dot for dot, words in said.items() if "input_precision" not in words or "out_dtype" in words]


def test_every_product_of_a_kernel_says_its_precision_and_adds_up_in_float32() -> None:
    files = {path: path.read_text() for path in (ROOT / "sparda_core" / "kernels").rglob("gpu*.py")}
    assert sum(len(list(_dots(text))) for text in files.values()) >= 3
    assert {path.name: found for path, text in files.items() if (found := _unsaid(text))} == {}
    assert _unsaid("x = tl.dot(a, b)")
    assert _unsaid("x = tl.dot(a, b, input_precision='ieee', out_dtype=tl.float16)")


def test_float32_products_are_not_rounded_to_tf32() -> None:
    """Inputs that TF32 cannot hold: 1 + 2**-12 has more bits than its ten."""
    rows = make_rows(7, [63], spec=SMALL, heads=1, group=1, width=32, dtype=torch.float32)
    array = torch.where(rows.array.isnan(), rows.array, 1 + 2.0**-12 * rows.array.sign())
    fine = Rows(
        spec=rows.spec, positions=rows.positions, q=torch.full_like(rows.q, 1 + 2.0**-12), array=array,
        logical=rows.logical, places=rows.places, dtype=rows.dtype,
    )  # fmt: skip
    assert relative_error(_by_slots(fine), fine.expected()) < 2e-6


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU's bfloat16 is right")
def test_the_interpreter_is_never_asked_for_bfloat16() -> None:
    assert torch.bfloat16 not in DTYPES
    assert len(DTYPES) == 2


@pytest.mark.parametrize(("selector", "runtime"), [("forecast", "offload-prefetch"), ("query", "resident")])
def test_freed_pages_and_slots_may_hold_anything_when_the_next_row_takes_them(selector: str, runtime: str) -> None:
    with pair(selector, runtime).open_cpu() as session:
        first, second = session.add(), session.add()
        for row, length in ((first, 95), (second, 61)):
            session.prefill(row, TOKENS[:length])
        session.decode({first: 1, second: 2})
        session.retire(first)
        assert poison_what_no_row_owns(session) > 0
        fresh = session.add()
        dense = DenseRow(MODEL.decoder, SPEC.block)
        got = session.prefill(fresh, TOKENS[100:130])
        torch.testing.assert_close(got, dense.append(TOKENS[100:130], [None] * SHAPE.layers))
        for token in range(6):
            poison_what_no_row_owns(session)
            logits = session.decode({fresh: token, second: token}).logits
            assert logits.isfinite().all()
            torch.testing.assert_close(logits[1], dense.append([token], [None] * SHAPE.layers))


def _far(shape: tuple[int, ...]) -> torch.Tensor:
    """float16 zeros that take no memory until they are written, on a CPU."""
    if DEVICE.type == "cuda":
        return torch.zeros(shape, dtype=torch.float16, device=DEVICE)
    return torch.from_numpy(np.zeros(shape, np.float16))


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("where", ["slots", "pages"])
def test_a_token_is_written_and_read_at_the_end_of_a_cache_beyond_32_bits(where: str) -> None:
    from sparda_core.kernels.tables import Paged

    blocks = 2**31 // (2 * 16 * 32) + 2
    array = _far((blocks, 2, 16, 32))
    assert (blocks - 1) * array.stride(0) > 2**31
    last = torch.tensor([[blocks - 1]], dtype=torch.int32, device=DEVICE)
    key, value = (torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(s)).half().to(DEVICE) for s in (1, 2))
    position = torch.tensor([5], dtype=torch.int32, device=DEVICE)
    store = Store(slots=array, tail=last)
    if where == "pages":
        store = Store(device=Paged(array=array, table=last[None], page_blocks=1))
    append_tokens(key, value, position, store)
    assert torch.equal(array[-1, :, 5], torch.cat((key[0], value[0])))
    assert int(array[-1].count_nonzero()) == int(array[0].count_nonzero()) + 64
    # One token is all that there is: attention gives back its value.
    out = torch.full((1, 2, 32), NAN, dtype=torch.float16, device=DEVICE)
    scratch = attend_scratch(
        places=1, q_heads=2, kv_heads=1, head_dim=32, blocks=1, block=16, dtype=torch.float16, device=DEVICE
    )
    array[-1, :, 0], counts = array[-1, :, 5], torch.ones(1, 1, dtype=torch.int32, device=DEVICE)
    attend_slots(torch.ones_like(out), array, last[None], counts, position * 0, SMALL, out, scratch)
    assert torch.equal(out, value.expand(1, 2, 32))


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("name", ["forecast", "query"])
def test_entries_of_a_row_that_begins_beyond_32_bits_are_scored(name: str) -> None:
    at = (40, 60, 90)
    counts = entry_counts(at, SCORED, 0)
    group = 1 if name == "forecast" else 3
    room = _far((2 * APART + (max(counts) + 1) * 32,))
    entries = room.as_strided((3, 1, max(counts), 32), (APART, 32 * max(counts), 32, 1))
    assert 2 * entries.stride(0) > 2**31
    for row, count in enumerate(counts):
        entries[row, :, count:] = NAN
        entries[row, :, :count] = randn(row, 1, count, 32, dtype=torch.float16)
    query, out = randn(9, 3, group, 32, dtype=torch.float16), room_for(SCORED, at, 1)
    score(name, query, entries, SCORED, at, 0, out)
    reference: Any = forecast_reference if name == "forecast" else query_reference
    want = reference(query.double()[:, :, None], as_view(entries, counts), place(at), SCORED)
    assert_scores(out, want, at, SCORED.block, SCORE_TOLERANCE)


@pytest.mark.gpu
def test_blocks_of_pinned_memory_beyond_32_bits_are_copied() -> None:
    blocks = 2**31 // (2 * 16 * 32) + 2
    store = pinned_empty(blocks * 2 * 16 * 32 * 2).view(torch.float16).view(blocks, 2, 16, 32)
    ids = torch.tensor([blocks - 1, 1], dtype=torch.int32, device=DEVICE)
    want = torch.randn(2, 2, 16, 32).half()
    store[blocks - 1], store[1] = want[0], want[1]
    target = torch.full((2, 2, 16, 32), NAN, dtype=torch.float16, device=DEVICE)
    places = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
    gather_blocks(store, target, ids, places, torch.tensor([2], dtype=torch.int32, device=DEVICE))
    assert torch.equal(target.cpu(), want)


def test_views_that_are_slices_of_something_wider_are_read_by_their_own_strides() -> None:
    """K and V interleaved with what others keep, rows of a cache of several layers: strides, never shapes, decide."""
    rows = make_rows(2, [90, 33], spec=SMALL, heads=2, group=2, width=32, dtype=torch.float32)
    packed = torch.full((rows.array.shape[0], 3, 4, 16, 40), NAN)
    view = packed.to(DEVICE)[:, 1, 1:3, :, 4:36]
    view.copy_(rows.array.float())
    physical, counts = rows.table(5, as_places=True)
    out = widened(torch.full(rows.q.shape, NAN), torch.float32)
    scratch = attend_scratch(
        places=2, q_heads=4, kv_heads=2, head_dim=32, blocks=5, block=16, dtype=torch.float32, device=DEVICE,
        tuning=Tuning(splits=2),
    )  # fmt: skip
    attend_slots(widened(rows.q, torch.float32), view, physical, counts, rows.position(), SMALL, out, scratch)
    assert relative_error(out, rows.expected()) < TOLERANCE[torch.float32]


def test_neighbours_of_every_table_may_hold_anything() -> None:
    """What lies beside lists, tables and rows changes no bit, whether it is NaN, zero or a huge id."""
    outcomes = []
    for seed in (1, 2):
        rows = make_rows(4, [70, 22], spec=SMALL, heads=1, group=2, width=32, dtype=torch.float32)
        room = torch.full((2, 3, 9), 2**30 if seed == 1 else -(2**30), dtype=torch.int32, device=DEVICE)
        physical, counts = rows.table(4, as_places=True)
        room[:, 1:2, 2:6] = physical
        out = torch.full((2, 2, 32), NAN, device=DEVICE)
        scratch = attend_scratch(
            places=2, q_heads=2, kv_heads=1, head_dim=32, blocks=4, block=16, dtype=torch.float32, device=DEVICE
        )
        attend_slots(
            rows.q.float().to(DEVICE), rows.array.float().to(DEVICE), room[:, 1:2, 2:6], counts, rows.position(), SMALL,
            out, scratch,
        )  # fmt: skip
        outcomes.append(out.cpu())
    assert torch.equal(*outcomes)
    assert outcomes[0].isfinite().all()
