"""Cuts of decode attention count the rounds in which a GPU takes thread blocks in."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

# isort: split
from benchmarks.gpu.attend_rounds import BEFORE
from sparda_core.kernels.attend.occupancy import H200, KIB, Sms
from sparda_core.kernels.attend.rounds import turns
from sparda_core.kernels.attend.splitting import MOST_SPLITS, cut_lists, most_splits, split_count

SHAPED: Any = {"block": 64, "group": 16, "head_dim": 128, "value_bytes": 2}
#: Three thread blocks on each of the multiprocessors of an H200. A piece's result is half as large as a tile.
HELD, LEFT = 3, 16 * 130 * 4 / 2**14
ROOM = HELD * H200.count
TIMED = Path(__file__).parents[3].joinpath("benchmarks/results/2026-11-30-attention-rounds-h200.json")
#: Microseconds of a turn, and of what every launch takes: fitted with the constants of `turns`.
TURN_US, EVERY_US = 0.916, 5.1


def takes(pairs: int, tiles: int, splits: int, sms: int = H200.count, held: int = HELD) -> float:
    return turns(pairs, tiles, splits, sms=sms, ctas_per_sm=held, left=LEFT)


def chosen(pairs: int, tiles: int, sms: int = H200.count, held: int = HELD) -> int:
    return split_count(pairs, tiles, sms=sms, ctas_per_sm=held, left=LEFT)


@given(
    pairs=st.integers(1, 600), tiles=st.integers(1, 3000), sms=st.sampled_from([1, 40, 108, 132]),
    held=st.integers(1, 8),
)  # fmt: skip
def test_a_list_is_cut_into_the_fewest_pieces_that_take_the_least(pairs: int, tiles: int, sms: int, held: int) -> None:
    splits = chosen(pairs, tiles, sms, held)
    assert 1 <= splits <= min(tiles, MOST_SPLITS)
    all_take = {n: takes(pairs, tiles, n, sms, held) for n in range(1, most_splits(pairs, tiles, sms) + 1)}
    assert all_take[splits] == min(all_take.values())
    assert all(all_take[n] > all_take[splits] for n in range(1, splits))


@given(pairs=st.integers(1, ROOM), tiles=st.integers(1, 96))
def test_lists_of_a_budget_that_fit_one_round_whole_begin_no_other(pairs: int, tiles: int) -> None:
    assert pairs * chosen(pairs, tiles) <= ROOM


@given(pairs=st.integers(1, ROOM), tiles=st.integers(97, 4000))
def test_long_lists_begin_another_round_only_where_it_is_quicker_than_every_cut_of_one(pairs: int, tiles: int) -> None:
    splits = chosen(pairs, tiles)
    one = min(takes(pairs, tiles, n) for n in range(1, min(tiles, MOST_SPLITS, ROOM // pairs) + 1))
    assert pairs * splits <= ROOM or takes(pairs, tiles, splits) < one


@given(pairs=st.integers(1, 600), splits=st.integers(1, 16), tiles=st.integers(16, 3000), held=st.integers(1, 7))
def test_room_that_one_round_leaves_changes_nothing(pairs: int, splits: int, tiles: int, held: int) -> None:
    if pairs * splits <= held * H200.count:
        here, more = (takes(pairs, tiles, splits, held=n) for n in (held, held + 1))
        assert more == here


@given(pairs=st.integers(1, 600), splits=st.integers(1, 16), tiles=st.integers(16, 3000), held=st.integers(1, 7))
def test_a_cut_takes_no_less_than_memory_does(pairs: int, splits: int, tiles: int, held: int) -> None:
    assert takes(pairs, tiles, splits, held=held) > pairs * tiles / H200.count


@pytest.mark.parametrize("rows", [20, 40, 56, 80, 112, 160])
def test_rows_that_took_two_rounds_take_one(rows: int) -> None:
    cut = cut_lists(2 * rows, 96, sms=H200, **SHAPED)
    assert cut.ctas_per_sm == HELD
    assert cut.splits == chosen(2 * rows, 96)
    assert 2 * rows * cut.splits <= ROOM


def test_a_cut_of_one_round_takes_two_where_multiprocessors_hold_fewer() -> None:
    little = Sms(count=132, shared_bytes=164 * KIB)
    assert [cut_lists(160, 96, sms=sms, **SHAPED).ctas_per_sm for sms in (H200, little)] == [HELD, 2]
    assert takes(160, 96, 2, held=2) > takes(160, 96, 2)


def timed() -> dict[tuple[int, int], dict[int, float]]:
    """(rows, blocks) -> pieces -> microseconds, where lists are cut into whole tiles."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for row in json.loads(TIMED.read_text())["rows"]:
        if row["tokens"] == 64 and (row["rows"] >= 20 or row["dense"]):
            found.setdefault((row["rows"], row["blocks"]), {})[row["splits"]] = row["us"]
    return found


@pytest.mark.parametrize("case", timed(), ids=str)
def test_of_the_cuts_that_were_timed_the_chosen_one_is_as_good_as_the_best(case: tuple[int, int]) -> None:
    (rows, blocks), us = case, timed()[case]
    assert us[chosen(2 * rows, blocks)] < 1.015 * min(us.values())


@pytest.mark.parametrize("case", timed(), ids=str)
def test_none_is_slower_than_before_rounds_were_counted(case: tuple[int, int]) -> None:
    (rows, blocks), us = case, timed()[case]
    before = BEFORE[blocks][rows]
    assert us[chosen(2 * rows, blocks)] < 1.005 * us[min(before, blocks)]


def test_turns_say_what_an_h200_took() -> None:
    off = [
        abs((EVERY_US + TURN_US * takes(2 * rows, blocks, splits)) / us - 1)
        for (rows, blocks), cuts in timed().items() for splits, us in cuts.items()
    ]  # fmt: skip
    assert len(off) > 250
    assert statistics.median(off) < 0.02
    assert statistics.quantiles(off, n=10)[-1] < 0.06


def test_without_rounds_they_would_not() -> None:
    us = timed()[256, 96][1]
    assert EVERY_US + TURN_US * takes(512, 96, 1) == pytest.approx(us, rel=0.05)
    assert EVERY_US + TURN_US * takes(512, 96, 1, held=100) < 0.9 * us
