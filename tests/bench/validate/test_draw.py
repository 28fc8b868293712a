"""What a seed draws: always the same, stratified, and held out where it says so."""

from __future__ import annotations

import zlib
from collections import Counter

import pytest

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.draw import HELD_OUT, LEAST_MANY, MANY_CTAS, SIZES, draw
from sparda_core.bench.validate.folder import Run, shipped_cells
from sparda_core.bench.validate.pools import (
    MOST_HOST_BYTES,
    POOLS,
    SEEN_COMBINATIONS,
    SEEN_CTAS,
    SEEN_MOST_BATCH,
    SEEN_MOST_CONTEXT,
    SEEN_SLOTS,
    fits,
)  # fmt: skip
from sparda_core.bench.validate.predicting import scenario_of
from sparda_core.bench.validate.record import Record, stratum_of
from sparda_core.errors import ConfigError


def any_ratio(cell: ValidationCell) -> float:
    """Something between 0 and 3 that a cell's name settles."""
    return zlib.crc32(cell.key.encode()) % 3000 / 1000


def held_out(run: Run) -> list[Record]:
    return [record for record in run.records if record.tier in HELD_OUT]


def check_quotas(run: Run) -> None:
    held = held_out(run)
    assert len(held) == SIZES["combination"] + SIZES["axis"]
    counts = Counter(record.stratum for record in held)
    assert 3 * counts["link"] >= len(held)
    assert 3 * counts["balanced"] >= len(held)
    assert sum((record.cell.ctas or 0) >= MANY_CTAS for record in held) >= LEAST_MANY
    for record in held:
        cell = record.cell
        if record.tier == "combination":
            assert cell.pair not in SEEN_COMBINATIONS, cell.key
        else:
            assert cell.pair in SEEN_COMBINATIONS, cell.key
            beyond = cell.context > SEEN_MOST_CONTEXT or cell.batch > SEEN_MOST_BATCH
            assert beyond or cell.ctas not in SEEN_CTAS or cell.slots not in SEEN_SLOTS, cell.key
    for record in run.records:
        if record.tier == "interpolated":
            cell = record.cell
            assert cell.pair in SEEN_COMBINATIONS
            assert (cell.context <= SEEN_MOST_CONTEXT, cell.batch <= SEEN_MOST_BATCH) == (True, True)
            assert cell.ctas in SEEN_CTAS
            assert cell.slots in SEEN_SLOTS


def test_a_seed_settles_the_list_and_another_one_gives_another() -> None:
    first, again, other = (draw(seed, ratio=any_ratio) for seed in (7, 7, 8))
    assert first == again
    assert held_out(first) != held_out(other)
    check_quotas(first)
    check_quotas(other)


def test_a_later_list_has_none_of_an_earlier_ones_cells() -> None:
    """What was measured before is no blind test again: neither the drawn cells nor those measured whatever is drawn."""
    first = draw(2026, ratio=any_ratio)
    known = {record.cell for record in first.records}
    second = draw(2027, ratio=any_ratio, without=known)
    assert not known & {record.cell for record in second.records}
    assert Counter(record.tier for record in second.records) == SIZES
    assert second.provenance["without_cells"] == len(known)
    check_quotas(second)


def test_no_cell_is_listed_twice_and_groups_are_joined() -> None:
    run = draw(7, ratio=any_ratio)
    assert len({record.cell for record in run.records}) == len(run.records)
    assert any(len(record.groups) > 1 for record in run.records)
    assert {name.split()[0] for name in run.groups} == {"copies", "engines", "combinations", "crossover", "slope"}


def test_quotas_that_no_pool_can_meet_are_refused() -> None:
    with pytest.raises(ConfigError, match="meet its quotas"):
        draw(7, ratio=lambda cell: 0.1)
    with pytest.raises(ConfigError, match="0 of 2"):
        draw(7, sizes={"interpolated": 2}, ratio=lambda cell: None)


def test_the_list_that_is_shipped_meets_the_quotas() -> None:
    run = shipped_cells()
    check_quotas(run)
    assert all(record.measured is None for record in run.records)
    assert all(record.stratum == stratum_of(record.ratio or 0.0) for record in run.records)
    assert run.provenance["seed"] == 2026
    assert run.provenance["fits"]


def test_every_shipped_cell_can_be_composed_and_fits_beside_the_others() -> None:
    for record in shipped_cells().records:
        scenario_of(record.cell, "h200").combination()
        assert fits(record.cell), record.cell.key


def test_what_does_not_fit_is_left_out() -> None:
    cell = next(cell for cell in POOLS["axis"]() if cell.batch == 256)
    assert fits(cell)
    larger = ValidationCell(selector="forecast", runtime="offload-prefetch", batch=17, context=131072)
    assert not fits(larger), f"more than {MOST_HOST_BYTES} bytes of host memory"
    assert not fits(ValidationCell(selector="dense", runtime="resident", batch=28, context=131072))
