"""InfiniGen on tokens: calibrated for every row from that row's own prompt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import PlanError
from sparda_core.plan import Phase
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.tensors.prompt_queries import PromptQueries
from sparda_core.selectors.tensors.row_buffer import RowBuffer
from sparda_core.selectors.tensors.skew import partial_projection
from tests.selectors import brute
from tests.selectors.world import GROUP, HEAD_DIM, SHAPE, SPEC, Drive, World, query_of

CHANNELS = 3


def basis(seed: int) -> torch.Tensor:
    """[D, CHANNELS], orthonormal."""
    source = torch.Generator().manual_seed(seed)
    rotation: torch.Tensor = torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=source, dtype=torch.float64))[0]
    return rotation[:, :CHANNELS]


def narrow_world() -> World:
    """Texts whose queries each live in a few dimensions of their own, other ones for every text."""
    world = World.random(texts=2, tokens=200, seed=9)
    for text in (0, 1):
        q = world.x[text].view(*world.x[text].shape[:-1], -1, HEAD_DIM)
        world.x[text] = (q @ basis(text) @ basis(text).T).flatten(-2)
    return world


def scores(drive: Drive, texts: list[int], position: int, layer: int) -> torch.Tensor:
    """[B, Hk, M] as the proxy gives them."""
    view = drive.world.view(texts, [[position]] * len(texts), layer=layer, source=layer - 1)
    for kind in ("proxy", "score"):
        drive.bound.run(kind, view)
    assert view.scores is not None
    return view.scores[:, :, 0]


def test_every_row_keeps_the_dimensions_that_its_own_prompt_uses() -> None:
    world = narrow_world()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=50), world)
    for text in (0, 1):
        drive.prefill(text, 150)
    got = scores(drive, [0, 1], 150, 2)
    for text in (0, 1):
        x = world.x[text, 1, 150][None, None]
        query = query_of(2, x, torch.tensor([[150]]))[0, :, 0]
        for head in range(SHAPE.kv_heads):
            # the newest token is not known a layer early; it lies in a forced block
            want = brute.token_scores(
                query[GROUP * head : GROUP * (head + 1)], world.keys[text, 2, head, :150], 150, SPEC
            )
            torch.testing.assert_close(got[text, head], torch.tensor(want, dtype=torch.float64) / CHANNELS**0.5)


def test_a_row_calibrated_on_anothers_prompt_would_score_otherwise() -> None:
    world = narrow_world()
    swapped = World(keys=world.keys, x=world.x.clone(), forecasts=world.forecasts, biases=world.biases)
    swapped.x[0, :, :100], swapped.x[1, :, :100] = world.x[1, :, :100], world.x[0, :, :100]
    right, wrong = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=50), w) for w in (world, swapped))
    for drive in (right, wrong):
        drive.prefill(0, 150)
    assert not torch.allclose(scores(right, [0], 150, 2), scores(wrong, [0], 150, 2))


def test_only_the_first_calibration_tokens_of_the_prompt_matter() -> None:
    world = World.random()
    other = World(keys=world.keys, x=world.x.clone(), forecasts=world.forecasts, biases=world.biases)
    other.x[0, :, 40:140] += 3.0
    drives = [Drive(InfiniGen(channels=CHANNELS, calibration_tokens=n), w) for n in (40, 41) for w in (world, other)]
    for drive in drives:
        drive.prefill(0, 150)
    first, same, second, differs = (scores(drive, [0], 150, 1) for drive in drives)
    assert torch.equal(first, same)
    assert not torch.equal(second, differs)


def test_generated_tokens_get_partial_keys_but_do_not_calibrate() -> None:
    world = World.random()
    grown = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=100), world)
    grown.prefill(0, 60)
    for position in range(60, 120):
        grown.decode([0], [position])
    read = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=60), world)
    read.prefill(0, 120)
    torch.testing.assert_close(scores(grown, [0], 120, 2), scores(read, [0], 120, 2))


def test_a_later_prompt_right_after_the_first_goes_on_calibrating() -> None:
    world = World.random()
    twice, once = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=100), world) for _ in range(2))
    twice.prefill(0, 50)
    scores(twice, [0], 50, 2)
    twice.prefill(0, 130, start=50)
    once.prefill(0, 130)
    assert torch.equal(scores(twice, [0], 130, 2), scores(once, [0], 130, 2))


def test_other_queries_in_the_place_of_cropped_ones_calibrate_anew() -> None:
    world = World.random()
    drive, fresh = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=60), world) for _ in range(2))
    drive.prefill(0, 100)
    scores(drive, [0], 100, 2)
    drive.bound.row_cropped(0, 20)
    other = world.splice(0, 1, 20)
    drive.prefill(other, 100, start=20, row=0)
    fresh.prefill(other, 100, row=0)

    def mixed(of: Drive) -> torch.Tensor:
        view = world.view([other], [[100]], layer=2, source=1, rows=[0])
        for kind in ("proxy", "score"):
            of.bound.run(kind, view)
        assert view.scores is not None
        return view.scores

    assert torch.equal(mixed(drive), mixed(fresh))


def test_a_row_without_a_prompt_starts_with_nothing_and_still_selects_lawfully() -> None:
    drive = Drive(InfiniGen(channels=CHANNELS), World.random())
    for position in range(120):
        drive.decode([0], [position])


def test_a_row_whose_past_was_never_shown_is_refused() -> None:
    drive = Drive(InfiniGen(channels=CHANNELS), World.random())
    with pytest.raises(PlanError, match=r"shown 0 of the 100 tokens of row 0 in layer 1"):
        drive.decode([0], [100])


def test_a_row_may_come_as_keys_of_which_only_the_first_have_queries() -> None:
    world = World.random()
    whole, parts = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=40), world) for _ in range(2))
    whole.prefill(0, 150)
    for first, stop in ((0, 40), (40, 150)):
        at = [list(range(first, stop))]
        for layer in range(SHAPE.layers):
            view = world.view([0], at, layer=layer, phase=Phase.PREFILL)
            view.query = view.query if first == 0 else None
            parts.bound.observe(view, world.new_keys([0], at, layer))
    assert torch.equal(scores(whole, [0], 150, 2), scores(parts, [0], 150, 2))


def test_rows_may_be_filled_in_inference_mode_and_forked_outside_it() -> None:
    drive = Drive(InfiniGen(channels=CHANNELS), World.random())
    with torch.inference_mode():
        drive.prefill(0, 60)
        drive.decode([0], [60])
    drive.bound.row_forked(0, 1)
    with torch.inference_mode():
        got = drive.decode([0, 0], [61, 61], rows=(0, 1))
    assert (got[:, 0] == got[:, 1]).all()


# Skew ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), tokens=st.integers(0, 20), channels=st.integers(1, HEAD_DIM))
def test_the_projection_is_orthonormal_and_the_same_every_time(seed: int, tokens: int, channels: int) -> None:
    source = torch.Generator().manual_seed(seed)
    queries = torch.randn(SHAPE.q_heads, tokens, HEAD_DIM, generator=source, dtype=torch.float64)
    projection = partial_projection(queries, kv_heads=SHAPE.kv_heads, channels=channels)
    assert projection.shape == (SHAPE.kv_heads, HEAD_DIM, channels)
    unit = torch.eye(channels, dtype=torch.float64).expand(SHAPE.kv_heads, -1, -1)
    torch.testing.assert_close(projection.mT @ projection, unit)
    assert torch.equal(projection, partial_projection(queries.clone(), kv_heads=SHAPE.kv_heads, channels=channels))


def test_the_projection_finds_the_dimensions_that_queries_use_in_any_dtype() -> None:
    source = torch.Generator().manual_seed(1)
    inner = torch.randn(SHAPE.q_heads, 30, CHANNELS, generator=source, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        projection = partial_projection((inner @ basis(4).T).to(dtype), kv_heads=SHAPE.kv_heads, channels=CHANNELS)
        assert projection.dtype == dtype
        found = projection @ projection.mT
        want = (basis(4) @ basis(4).T).to(dtype).expand_as(found)
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


# Parts --------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 9), max_size=6), limit=st.integers(0, 30), keep=st.integers(0, 40))
def test_prompt_queries_are_the_first_ones_however_they_came(sizes: list[int], limit: int, keep: int) -> None:
    every = torch.randn(2, sum(sizes), 3)
    held, start = PromptQueries(), 0
    for size in sizes:
        held = held.added(start, every[:, start : start + size], limit=limit)
        start += size
    assert torch.equal(held.stacked(every), every[:, :limit])
    assert torch.equal(held.cropped(keep).stacked(every), every[:, : min(limit, keep)])
    assert held.added(start + 1, every, limit=limit + 1).count == held.count


def test_a_row_buffer_holds_rows_apart_through_growth_copies_crops_and_reuse() -> None:
    buffer = RowBuffer(kv_heads=2, width=3, dtype=torch.float64, device=torch.device("cpu"))
    source = torch.Generator().manual_seed(0)
    model: dict[int, torch.Tensor] = {}
    for step in range(300):
        row = int(torch.randint(5, (1,), generator=source))
        action = int(torch.randint(8, (1,), generator=source))
        if action == 0:
            buffer.drop(row)
            model.pop(row, None)
        elif action == 1 and model.get(row) is not None:
            buffer.crop(row, step % 7)
            model[row] = model[row][:, : step % 7]
        elif action == 2 and row in model and row + 10 not in model:
            buffer.copy(row, row + 10)
            model[row + 10] = model[row]
        elif action == 3:
            buffer.drop(row + 10)
            model.pop(row + 10, None)
        else:
            fresh = torch.randn(2, step % 5, 3, generator=source, dtype=torch.float64)
            buffer.append(row, fresh)
            model[row] = torch.cat((model[row], fresh), 1) if row in model else fresh
        rows = sorted(model, key=lambda r: (r * 7) % 5)
        values, lengths = buffer.batch(rows)
        for i, r in enumerate(rows):
            assert torch.equal(values[i, :, : lengths[i]], model[r])
            assert buffer.length(r) == model[r].shape[1]
