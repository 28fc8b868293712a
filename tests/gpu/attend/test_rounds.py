"""Cuts of decode attention count the rounds in which a GPU takes thread blocks in."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.kernels.attend.occupancy import H200, KIB, Sms
from sparda_core.kernels.attend.rounds import turns
from sparda_core.kernels.attend.splitting import MOST_SPLITS, cut_lists, most_splits, split_count

SHAPED: Any = {"block": 64, "group": 16, "head_dim": 128, "value_bytes": 2}
HELD = 3
#: Three thread blocks on each of the multiprocessors of an H200.
ROOM = HELD * H200.count
SAMPLES = Path(__file__).parents[3].joinpath("benchmarks/results/2026-11-30-calibration-h200.samples.json")
#: Microseconds of a turn, and of what every launch takes; bytes a microsecond that results of pieces are written and
#: read at. Fitted with the constants of `turns`.
TURN_US, EVERY_US, BYTES_PER_US = 0.9465, 5.02, 4.57e6


@given(
    pairs=st.integers(1, 600), tiles=st.integers(1, 3000), sms=st.sampled_from([1, 40, 108, 132]),
    held=st.integers(1, 8),
)  # fmt: skip
def test_a_list_is_cut_into_the_fewest_pieces_that_take_the_least(pairs: int, tiles: int, sms: int, held: int) -> None:
    splits = split_count(pairs, tiles, sms, held)
    assert 1 <= splits <= min(tiles, MOST_SPLITS)
    takes = {n: turns(pairs, tiles, n, sms, held) for n in range(1, most_splits(pairs, tiles, sms) + 1)}
    assert takes[splits] == min(takes.values())
    assert all(takes[n] > takes[splits] for n in range(1, splits))


@given(pairs=st.integers(1, ROOM), tiles=st.integers(1, 512))
def test_lists_that_fit_one_round_whole_begin_no_other(pairs: int, tiles: int) -> None:
    assert pairs * split_count(pairs, tiles, H200.count, HELD) <= ROOM


@given(pairs=st.integers(1, ROOM), tiles=st.integers(1, 4000))
def test_long_lists_begin_another_round_only_where_it_is_quicker_than_every_cut_of_one(pairs: int, tiles: int) -> None:
    splits = split_count(pairs, tiles, H200.count, HELD)
    one = min(
        turns(pairs, tiles, n, H200.count, HELD) for n in range(1, min(tiles, MOST_SPLITS, ROOM // pairs) + 1)
    )  # fmt: skip
    assert pairs * splits <= ROOM or turns(pairs, tiles, splits, H200.count, HELD) < one


@given(pairs=st.integers(ROOM + 1, 4 * ROOM), tiles=st.integers(1, 3000))
def test_more_lists_than_fit_one_round_still_have_a_cut(pairs: int, tiles: int) -> None:
    assert pairs * split_count(pairs, tiles, H200.count, HELD) >= pairs


@given(pairs=st.integers(1, 600), splits=st.integers(1, 16), tiles=st.integers(16, 3000), held=st.integers(1, 7))
def test_a_multiprocessor_that_holds_more_is_never_slower_in_one_round(
    pairs: int, splits: int, tiles: int, held: int
) -> None:
    if pairs * splits <= held * H200.count:
        here, more = (turns(pairs, tiles, splits, H200.count, n) for n in (held, held + 1))
        assert more == here


@pytest.mark.parametrize("rows", [20, 40, 56, 80, 112, 160])
def test_rows_that_took_two_rounds_take_one(rows: int) -> None:
    cut = cut_lists(2 * rows, 96, sms=H200, **SHAPED)
    assert cut.ctas_per_sm == HELD
    assert 132 <= 2 * rows * cut.splits <= ROOM


def test_a_gpu_whose_multiprocessors_hold_fewer_gets_fewer_pieces() -> None:
    little = Sms(count=132, shared_bytes=164 * KIB)
    cuts = [cut_lists(160, 96, sms=sms, **SHAPED) for sms in (H200, little)]
    assert [cut.ctas_per_sm for cut in cuts] == [3, 2]
    assert [160 * cut.splits for cut in cuts] == [320, 160]


def _timed() -> list[tuple[int, int, int, float]]:
    """(lists, tiles, pieces, microseconds) of attention alone, four warps and whole tiles."""
    found = []
    for row in json.loads(SAMPLES.read_text())["sections"]["kernels"]:
        tiles = {"attend": 96, "attend all": 512}.get(row["kernel"])
        pairs = 2 * row["rows"]
        if tiles and (tiles > 96 or pairs > 33) and pairs >= 16:
            found.append((pairs, tiles, row["work"]["ctas"] // pairs, statistics.median(row["us"])))
    return found


def _said_us(pairs: int, tiles: int, splits: int, held: int) -> float:
    left = 2 * 4 * pairs * splits * 16 * 130 * (splits > 1)
    return EVERY_US + TURN_US * turns(pairs, tiles, splits, H200.count, held) + left / BYTES_PER_US


def test_turns_say_what_an_h200_took() -> None:
    timed = _timed()
    assert len(timed) >= 18
    for *cut, took_us in timed:
        pairs, tiles, splits = cut
        assert _said_us(pairs, tiles, splits, HELD) == pytest.approx(took_us, rel=0.02), cut


def test_without_rounds_they_would_not() -> None:
    pairs, tiles, splits, took_us = next(row for row in _timed() if row[0] == 512)
    assert _said_us(pairs, tiles, splits, held=100) < 0.95 * took_us
