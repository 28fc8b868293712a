"""Memory of the reference release against what the paper could and could not run."""

from __future__ import annotations

import itertools

import pytest

from sparda_core.published.capacity import ReferenceNeed, reference_need
from sparda_core.published.cells import WORK, Assumptions
from sparda_core.published.report import Report
from sparda_core.published.table import CONTEXT, Mode, cells

PROFILE = Assumptions().machine()


def need(mode: Mode, batch: int) -> ReferenceNeed:
    return reference_need(mode, batch=batch, context=CONTEXT, work=WORK, profile=PROFILE)


@pytest.mark.parametrize(("mode", "gigabytes"), [(Mode.RESIDENT, 4.63), (Mode.PREFETCH, 0.47), (Mode.SYNC, 0.34)])
def test_a_row_of_128k_takes_what_was_read_from_the_release(mode: Mode, gigabytes: float) -> None:
    assert (need(mode, 64).device - need(mode, 32).device) / 32e9 == pytest.approx(gigabytes, abs=0.006)


def test_pinned_stores_are_rounded_up_to_twice_their_size() -> None:
    assert need(Mode.SYNC, 16).host == 64 * 2**31
    assert need(Mode.SYNC, 16).host / (2 * 32 * 16 * CONTEXT * 512) == pytest.approx(2)
    assert need(Mode.RESIDENT, 16).host == 0


@pytest.mark.parametrize("mode", Mode)
def test_more_rows_never_take_less(mode: Mode) -> None:
    needs = [need(mode, batch) for batch in range(1, 40)]
    assert all(a.device < b.device and a.host <= b.host for a, b in itertools.pairwise(needs))


def test_every_cell_that_ran_fits_and_all_but_one_that_did_not_are_too_large(plain: Report) -> None:
    ran = [r for r in plain.results if r.cell.tokens_per_s is not None]
    assert not [r.cell for r in ran if r.problem]
    # The sums from reading leave batch 8 without offload 17 GB of room, so something in them is missing.
    assert [(r.cell.batch, r.cell.mode) for r in plain.memory_wrong] == [(8, Mode.RESIDENT)]
    assert 65e9 < need(Mode.RESIDENT, 8).device < 70e9


def test_at_batch_128_the_device_is_too_small_for_the_forecast_and_the_host_for_the_rest(plain: Report) -> None:
    problems = {r.cell.mode: r.problem or "" for r in plain.results if r.cell.batch == 128}
    assert problems.keys() == set(Mode)
    assert problems[Mode.SYNC].startswith("host memory")
    assert all(problems[mode].startswith("device memory") for mode in Mode if mode != Mode.SYNC)
    assert all(cell.out_of_memory for cell in cells(too_large=True) if cell.batch == 128)
