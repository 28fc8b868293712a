"""Lawful selections, and what is new in one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.selection import check_selection, fresh_blocks
from sparda_core.shapes import BlockSpec

SPEC = BlockSpec(block=16, sink=1, local=2, budget=6)
POSITION = 9 * 16 + 3  # current block 9, forced 0, 7, 8, 9


def selection(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32).reshape(1, 1, 1, -1)


def check(ids: np.ndarray, position: int = POSITION) -> None:
    check_selection(ids, spec=SPEC, positions=np.array([[position]]))


@pytest.mark.parametrize("ids", [(0, 2, 3, 7, 8, 9), (0, 7, 8, 9), (0, 7, 8, 9, -1, -1)])
def test_a_lawful_selection_passes(ids: tuple[int, ...]) -> None:
    check(selection(*ids))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((0, 3, 3, 7, 8, 9), "ascending without repeats"),
        ((0, 7, 8, 9, 3), "ascending"),
        ((0, -1, 7, 8, 9), "-1 last"),
        ((0, 7, 8, 9, 10), "future block 10"),
        ((7, 8, 9), r"lacks forced blocks \[0\]"),
        ((0, 1, 2, 3, 7, 8, 9), "7 wide but budget=6"),
        ((-2, 0, 7, 8, 9), "ascending"),
    ],
)
def test_an_unlawful_selection_is_named(ids: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(selection(*ids))


def test_an_inactive_row_selects_nothing() -> None:
    check(selection(-1, -1), position=-1)
    with pytest.raises(ConfigError, match="must be empty: the row is inactive"):
        check(selection(0, -1), position=-1)


def test_dtype_and_rank_are_part_of_the_law() -> None:
    with pytest.raises(ConfigError, match="int32"):
        check(selection(0, 7, 8, 9).astype(np.int64))
    with pytest.raises(ConfigError, match=r"\[B, Hk, T, budget\]"):
        check(selection(0, 7, 8, 9)[0])


sets = st.sets(st.integers(0, 30), max_size=8)


@given(now=sets, before=sets)
def test_fresh_blocks_are_a_set_difference(now: set[int], before: set[int]) -> None:
    padded = [np.array(sorted(ids) + [-1] * (8 - len(ids)), np.int32) for ids in (now, before)]
    assert fresh_blocks(*padded) == len(now - before)
