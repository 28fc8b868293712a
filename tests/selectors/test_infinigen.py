"""InfiniGen on tokens: calibrated for every row from that row's own prompt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import PlanError
from sparda_core.plan import Phase
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.tensors.infinigen import BoundInfiniGen
from sparda_core.selectors.tensors.partial_keys import TokenScorer
from sparda_core.selectors.tensors.prompt_queries import PromptQueries
from sparda_core.selectors.tensors.prompt_strength import PromptStrength
from sparda_core.selectors.tensors.row_buffer import RowBuffer
from sparda_core.selectors.tensors.skew import partial_projection, rotation_of, strength_of
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


def kept_by(drive: Drive, tokens: int, *, row: int = 0, layer: int = 1) -> torch.Tensor:
    """[Hk, D, CHANNELS] of a row that holds so many tokens."""
    assert isinstance(drive.bound, BoundInfiniGen)
    assert isinstance(drive.bound.scorer, TokenScorer)
    return drive.bound.scorer.projection_of(row, layer, tokens, like=drive.world.keys[0, layer])


def queries_of(world: World, text: int, tokens: int, layer: int = 1) -> torch.Tensor:
    """[Hq, tokens, D], the layer's own."""
    return query_of(layer, world.x[text, layer, :tokens][None], torch.arange(tokens)[None])[0]


@pytest.mark.parametrize("calibration", [16, 64, 160, 512])
def test_dimensions_are_the_releases_the_rotation_by_the_first_tokens_the_choice_by_all(calibration: int) -> None:
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=calibration), world)
    drive.prefill(0, 160, chunk=23)
    want = partial_projection(
        queries_of(world, 0, 160), kv_heads=SHAPE.kv_heads, channels=CHANNELS, rotated_by=calibration
    )
    torch.testing.assert_close(kept_by(drive, 160), want)


def test_a_prompt_counts_to_its_last_whole_block() -> None:
    """Blocks are of 16 tokens; the first 40 make the rotation, so that the block of 32 to 47 does not count itself."""
    first, same = ((drawn := World.random()), World.random())
    for changed, start, stop in ((False, 40, 48), (True, 47, 49), (True, 130, 135), (False, 144, 150), (True, 39, 40)):
        same.x[:] = drawn.x
        same.x[0, :, start:stop] *= -3.0  # of a changed length, or a block would be as strong as before
        drives = [Drive(InfiniGen(channels=CHANNELS, calibration_tokens=40), world) for world in (first, same)]
        for drive in drives:
            drive.prefill(0, 150)
        sums = [_totals(drive) for drive in drives]
        assert torch.equal(*sums) != changed, f"tokens {start} to {stop}"


def _totals(drive: Drive) -> torch.Tensor:
    assert isinstance(drive.bound, BoundInfiniGen)
    assert isinstance(drive.bound.scorer, TokenScorer)
    prompt = drive.bound.scorer._state[0, 1].prompt
    assert prompt is not None
    return prompt.totals[-1][1]


def test_a_late_part_of_a_long_prompt_chooses_dimensions_too() -> None:
    """A text that looks for other things after its beginning: its dimensions are not those of the beginning."""
    world = narrow_world()
    world.x[0, :, 48:] = world.x[1, :, 48:]
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=48), world)
    drive.prefill(0, 160)
    late = queries_of(world, 0, 160)[:, 48:].reshape(SHAPE.kv_heads, -1, HEAD_DIM)
    beginning = partial_projection(queries_of(world, 0, 48), kv_heads=SHAPE.kv_heads, channels=CHANNELS)
    assert (late @ kept_by(drive, 160)).square().sum() > 1.5 * (late @ beginning).square().sum()


def test_generated_tokens_get_partial_keys_but_do_not_calibrate() -> None:
    world = World.random()
    grown = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=100), world)
    grown.prefill(0, 60)
    for position in range(60, 120):
        grown.decode([0], [position])
    read = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=60), world)
    read.prefill(0, 120)
    torch.testing.assert_close(scores(grown, [0], 120, 2), scores(read, [0], 120, 2))


@pytest.mark.parametrize("calibration", [32, 100])
def test_a_later_prompt_right_after_the_first_goes_on_calibrating(calibration: int) -> None:
    world = World.random()
    twice, once = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=calibration), world) for _ in range(2))
    twice.prefill(0, 50)
    scores(twice, [0], 50, 2)
    twice.prefill(0, 130, start=50)
    once.prefill(0, 130)
    assert torch.equal(scores(twice, [0], 130, 2), scores(once, [0], 130, 2))


def test_a_prompt_after_an_answer_counts_too_in_its_whole_blocks() -> None:
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(0, 70)  # blocks 2 and 3 count after the rotation's two
    for position in range(70, 90):
        drive.decode([0], [position])
    before = kept_by(drive, 90)
    drive.prefill(0, 180, start=90)  # blocks 6 to 10
    every = queries_of(world, 0, 180)
    counted = torch.cat((every[:, :64], every[:, 96:176]), dim=1)
    want = partial_projection(counted, kv_heads=SHAPE.kv_heads, channels=CHANNELS, rotated_by=32)
    torch.testing.assert_close(_totals(drive), strength_of(counted, rotation_of(every[:, :32], kv_heads=2)))
    torch.testing.assert_close(kept_by(drive, 180), want)
    assert not torch.allclose(before, want)
    read = scores(drive, [0], 180, 1)  # with the partial keys of generated tokens, too
    partial = world.keys[0, 1, :, :180] @ want
    query = query_of(1, world.x[0, 0, 180][None, None], torch.tensor([[180]]))[0, :, 0]
    for head in range(SHAPE.kv_heads):
        kept = query[GROUP * head : GROUP * (head + 1)] @ want[head]
        told = brute.token_scores(kept, partial[head], 180, SPEC)
        torch.testing.assert_close(read[0, head], torch.tensor(told, dtype=torch.float64) / CHANNELS**0.5)


@pytest.mark.parametrize("kept", [150, 149, 100, 96, 48, 33, 32, 31, 1])
def test_a_row_cropped_anywhere_keeps_what_one_keeps_that_never_was_longer(kept: int) -> None:
    world = World.random()
    drive, fresh = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world) for _ in range(2))
    drive.prefill(0, 150)
    scores(drive, [0], 150, 1)
    drive.bound.row_cropped(0, kept)
    fresh.prefill(0, kept)
    assert torch.equal(kept_by(drive, kept), kept_by(fresh, kept))
    assert torch.equal(scores(drive, [0], kept, 1), scores(fresh, [0], kept, 1))


@pytest.mark.parametrize(("kept", "counted"), [(96, [*range(144)]), (100, [*range(96), *range(112, 144)])])
def test_the_block_that_a_crop_cut_does_not_count_when_it_is_filled_again(kept: int, counted: list[int]) -> None:
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(0, 150)
    drive.bound.row_cropped(0, kept)
    other = world.splice(0, 1, kept)
    drive.prefill(other, 150, start=kept, row=0)
    want = partial_projection(
        queries_of(world, other, 150)[:, counted], kv_heads=SHAPE.kv_heads, channels=CHANNELS, rotated_by=32
    )
    torch.testing.assert_close(kept_by(drive, 150), want)


@pytest.mark.parametrize("stop", [101, 112, 130, 150])
def test_a_prompt_that_is_taken_back_costs_no_part_of_a_block(stop: int) -> None:
    """A row of 100 tokens ends within a block, the rest of which the prompt brings."""
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(0, 100)
    drive.bound.row_reads(0, 100)
    drive.prefill(world.splice(0, 1, 100), stop, start=100, row=0)
    drive.bound.row_cropped(0, 100)
    drive.prefill(0, 150, start=100)
    assert torch.equal(kept_by(drive, 150), kept_by(_read(world, 0, 150), 150))


def test_what_a_prompt_began_with_is_not_that_of_a_row_cropped_further_and_filled_again() -> None:
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(0, 100)
    drive.bound.row_reads(0, 100)
    drive.bound.row_cropped(0, 40)
    other = world.splice(0, 1, 40)
    drive.prefill(other, 120, start=40, row=0)
    drive.bound.row_cropped(0, 100)
    counted = [*range(32), *range(48, 96)]
    want = partial_projection(
        queries_of(world, other, 120)[:, counted], kv_heads=SHAPE.kv_heads, channels=CHANNELS, rotated_by=32
    )
    torch.testing.assert_close(kept_by(drive, 100), want)


def test_a_fork_and_its_source_read_on_apart() -> None:
    world = World.random()
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(0, 100)
    drive.bound.row_forked(0, 7)
    other = world.splice(0, 1, 100)
    drive.prefill(other, 160, start=100, row=7)
    assert torch.equal(kept_by(drive, 100), kept_by(_read(world, 0, 100), 100))
    drive.prefill(0, 160, start=100)
    for row, text in ((0, 0), (7, other)):
        assert torch.equal(kept_by(drive, 160, row=row), kept_by(_read(world, text, 160), 160))


def _read(world: World, text: int, tokens: int) -> Drive:
    drive = Drive(InfiniGen(channels=CHANNELS, calibration_tokens=32), world)
    drive.prefill(text, tokens, row=0)
    return drive


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
    """What is not shown counts as if it had been generated."""
    world = World.random()
    whole, parts = (Drive(InfiniGen(channels=CHANNELS, calibration_tokens=40), world) for _ in range(2))
    whole.prefill(0, 75)
    for position in range(75, 150):
        whole.decode([0], [position])
    for first, stop in ((0, 75), (75, 150)):
        at = [list(range(first, stop))]
        for layer in range(SHAPE.layers):
            view = world.view([0], at, layer=layer, phase=Phase.PREFILL)
            view.query = view.query if first == 0 else None
            parts.bound.observe(view, world.new_keys([0], at, layer))
    assert torch.equal(kept_by(whole, 150), kept_by(parts, 150))
    torch.testing.assert_close(scores(whole, [0], 150, 2), scores(parts, [0], 150, 2))


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


#: Parts of a row: whether it is read or generated, and its tokens.
parts = st.lists(st.tuples(st.booleans(), st.integers(1, 23)), max_size=8)


@given(parts=parts, keep=st.integers(0, 140))
def test_prompt_queries_are_those_read_however_they_came(parts: list[tuple[bool, int]], keep: int) -> None:
    every = torch.randn(2, sum(size for _, size in parts), 3)
    held, start = PromptQueries(), 0
    read: list[int] = []
    for is_read, size in parts:
        if is_read:
            held = held.added(start, every[:, start : start + size])
            read += range(start, start + size)
        start += size
    assert torch.equal(held.stacked(every), every[:, read])
    assert (held.count, held.stop) == (len(read), read[-1] + 1 if read else 0)
    assert torch.equal(held.cropped(keep).stacked(every), every[:, [at for at in read if at < keep]])


@given(
    parts=parts, keep=st.integers(0, 200), limit=st.integers(1, 40), block=st.sampled_from([4, 16]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_prompt_strength_is_that_of_plain_lists(
    parts: list[tuple[bool, int]], keep: int, limit: int, block: int, seed: int
) -> None:
    every = torch.randn(4, sum(size for _, size in parts), 6, generator=torch.Generator().manual_seed(seed))
    held = whole = PromptStrength(limit=limit, block=block, kv_heads=2)
    read: list[int] = []
    start = 0
    for is_read, size in parts:
        if is_read:
            for at in range(start, start + size):
                held = held.added(at, every[:, at : at + 1])
            whole = whole.added(start, every[:, start : start + size])
            read += range(start, start + size)
        start += size
    assert torch.equal(held.projection(every, channels=3), whole.projection(every, channels=3))
    for made, tokens in ((whole, start), (whole.cropped(keep), keep)):
        left = [at for at in read if at < tokens]
        counted = left[:limit] + _whole_blocks(left[limit:], block)
        assert made.counted == len(counted)
        if counted:
            rotation = rotation_of(every[:, left[:limit]], kv_heads=2)
            want = strength_of(every[:, counted], rotation)
            got = made.totals[-1][1] if made.totals else strength_of(made.head.stacked(every), rotation)
            torch.testing.assert_close(got, want)


def _whole_blocks(positions: list[int], block: int) -> list[int]:
    """Those whose whole block is among them."""
    full = {at // block for at in positions if all(other in positions for other in _block_of(at, block))}
    return [at for at in positions if at // block in full]


def _block_of(position: int, block: int) -> range:
    first = position // block * block
    return range(first, first + block)


def test_what_a_long_prompt_leaves_behind_is_a_sum_a_block() -> None:
    queries = torch.randn(4, 64 * 16 + 5, 6)
    known = PromptStrength(limit=32, block=16, kv_heads=2).added(0, queries)
    assert (known.head.count, known.tail.count, len(known.totals)) == (32, 5, 1 + 62)
    assert sum(total.nbytes for _, total in known.totals) == 63 * 8 * 2 * 6


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
