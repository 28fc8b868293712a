"""The cells that were measured on an H200 are those that were listed before, and their facts are the device's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.bench.validate.folder import SECOND, SHIPPED, read_run, shipped_cells
from sparda_core.bench.validate.predicting import predict_record
from sparda_core.bench.validate.record import DRAWN

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
KEPT, LATER = RESULTS / "2026-11-30-validated-h200", RESULTS / "2026-11-30-validated-second-h200"
#: What was not measured: the other stream on the link ended first, and more host memory than all cells share.
NOT_MEASURED = {
    KEPT: ["forecast prefetch b16 64K churn 10% last-selection x1 beside 20 GB/s"],
    LATER: ["random sync b16 128K churn 20% lru x2 8 CTAs"],
}


@pytest.mark.parametrize(("place", "cells"), [(KEPT, SHIPPED), (LATER, SECOND)], ids=["first", "second"])
def test_every_cell_of_the_list_was_measured_and_confirmed(place: Path, cells: Path) -> None:
    listed, kept = read_run(cells), read_run(place)
    assert [record.cell for record in kept.records] == [record.cell for record in listed.records]
    assert [record.tier for record in kept.records] == [record.tier for record in listed.records]
    measured = [record for record in kept.records if record.measured is not None]
    assert [record.cell.key for record in kept.records if record.measured is None] == NOT_MEASURED[place]
    for record in measured:
        assert record.measured is not None
        assert record.measured.confirmed == 9
        assert len(record.measured.steps_s) == record.measured.facts.steps == 72
        assert (record.measured.moved_bytes > 0) == record.cell.offloads


def test_no_cell_of_the_second_list_is_of_the_first() -> None:
    first, second = ({record.cell for record in read_run(cells).records} for cells in (SHIPPED, SECOND))
    assert not first & second


def test_list_and_measurement_say_where_they_come_from() -> None:
    told = read_run(KEPT).provenance
    assert told["measured"]["gpu"]["name"] == "NVIDIA H200"
    assert len(told["measured"]["commit"]) == 40
    assert told["cells"]["seed"] == shipped_cells().provenance["seed"]


def test_a_kept_cell_is_still_predicted_within_a_tenth() -> None:
    record = next(r for r in read_run(KEPT).records if r.cell.key == "forecast sync b8 256K churn 5% last-selection x1")
    assert abs(predict_record(record, "h200", steps=2).error(DRAWN) or 1) < 0.1
