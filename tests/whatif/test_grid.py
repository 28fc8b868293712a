from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario

AXES = {"batch": (1, 2, 4), "link_gb_s": (10.0, 20.0), "runtime": ("offload-sync", "offload-prefetch")}


def test_the_last_axis_varies_fastest_and_points_are_scenarios() -> None:
    grid = Grid(base=Scenario(budget=128), axes=AXES)
    want = [dict(zip(AXES, labels, strict=True)) for labels in itertools.product(*AXES.values())]
    assert [grid.labels(point) for point in range(len(grid))] == want
    assert grid.scenario(5) == Scenario(budget=128, batch=2, link_gb_s=10.0, runtime="offload-prefetch")


@given(counts=st.lists(st.integers(1, 7), max_size=4))
def test_spreading_out_meets_every_point_once(counts: list[int]) -> None:
    names = ("batch", "context", "budget", "ctas")
    grid = Grid(axes={name: range(40, 40 + count) for name, count in zip(names, counts, strict=False)})
    assert sorted(grid.spread_out()) == list(range(len(grid)))


def test_spreading_out_meets_every_value_early() -> None:
    grid = Grid(axes={"batch": range(1, 11), "ctas": range(1, 11)})
    early = [grid.labels(point) for point in itertools.islice(grid.spread_out(), 30)]
    assert {labels["batch"] for labels in early} == set(range(1, 11))


def test_knobs_can_be_turned_together_under_one_label() -> None:
    pools = {"small": {"policy": "lru", "slot_factor": 1}, "large": {"policy": "lru", "slot_factor": 4}}
    grid = Grid(axes={"pool": pools, "batch": (1, 2)})
    assert grid.labels(2) == {"pool": "large", "batch": 1}
    assert (grid.scenario(2).policy, grid.scenario(2).slot_factor) == ("lru", 4.0)
    assert grid.axis("pool").chosen
    assert not grid.axis("batch").chosen


def test_an_axis_takes_the_place_of_the_knob_that_excludes_it() -> None:
    grid = Grid(base=Scenario(slots=200), axes={"slot_factor": (2.0, 4.0)})
    assert grid.scenario(0).slots is None


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"batch": ()}, "has no list of values"),
        ({"batch": "12"}, "has no list of values"),
        ({"batch": (1, 2.5)}, "batch=2.5 must be"),
        ({"batch": (True,)}, "batch=True must be"),
        ({"bach": (1,)}, "did you mean 'batch'?"),
        ({"batch": {"one": {"batch": 1}}}, "has the name of one"),
        ({"load": {"one": {"batch": 1}}, "batch": (1,)}, "turned by more than one axis"),
        ({"batch": range(1, 1001), "context": range(1, 10_001)}, "10,000,000 points (batch 1000 x context 10000)"),
        ({"runtime": ("resident", "offload-sinc")}, "did you mean 'offload-sync'?"),
        ({"selector": ("forcast", "query")}, "did you mean 'forecast'?"),
        ({"profile": ("h200", "h20")}, "did you mean 'h200'?"),
        ({"shape": ("minicpm",)}, "did you mean 'minicpm4.1-8b'?"),
        ({"policy": ("lru", "lur")}, "did you mean 'lru'?"),
        ({"engine": ("uva", "copyengine")}, "did you mean 'copy-engine'?"),
        ({"locality": ("hispars",)}, "did you mean 'hisparse'?"),
    ],
)
def test_grids_that_cannot_be_meant_are_refused(axes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        Grid(axes=axes)
    assert says in str(wrong.value)


def test_the_bound_on_points_can_be_raised() -> None:
    axes = {"batch": range(1, 1001), "context": range(1, 1001)}
    with pytest.raises(ConfigError, match="--most-points"):
        Grid(axes=axes)
    assert len(Grid(axes=axes, most=10**6)) == 10**6


def test_a_pair_that_does_not_fit_is_no_reason_to_refuse_a_grid() -> None:
    grid = Grid(axes={"selector": ("query", "forecast"), "runtime": ("offload-prefetch",)})
    assert len(grid) == 2


def test_an_unknown_name_among_known_ones_is_an_error_of_its_own_kind() -> None:
    with pytest.raises(UnknownNameError):
        Grid(axes={"profile": ("h200", "absent")})


def test_two_grids_differ_in_what_their_description_says() -> None:
    one, other = Grid(axes={"batch": (1, 2)}), Grid(base=Scenario(budget=128), axes={"batch": (1, 2)})
    assert one.described() != other.described()
    assert one.described() == Grid(base=Scenario(batch=99), axes={"batch": (1, 2)}).described()
