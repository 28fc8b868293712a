from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.whatif.axes import checked, knob_named, parse_axis, spread
from sparda_core.whatif.scenario import Scenario


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("batch=1,2,4", "batch", (1, 2, 4)),
        ("link_gb_s=10:60:6", "link_gb_s", (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)),
        ("link-gb-s=10", "link_gb_s", (10.0,)),
        ("churn=0.01:0.16:log5", "churn", (0.01, 0.02, 0.04, 0.08, 0.16)),
        ("batch=1:8:log4,16", "batch", (1, 2, 4, 8, 16)),
        ("batch=4,4,4", "batch", (4,)),
        ("batch=1:3:7", "batch", (1, 2, 3)),
        ("slots=none,192", "slots", (None, 192)),
        ("runtime=resident, offload-sync", "runtime", ("resident", "offload-sync")),
        ("extrapolate=true,false", "extrapolate", (True, False)),
    ],
)
def test_an_axis_lists_values_and_ranges_each_once(text: str, name: str, values: tuple[Any, ...]) -> None:
    got = parse_axis(text)
    assert got == (name, values)
    assert [type(value) for value in got[1]] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch", "must be NAME=VALUES"),
        ("batch=", "has no values"),
        ("batch= , ", "has no values"),
        ("bacth=1", "did you mean 'batch'?"),
        ("batch=two", "batch='two' must be"),
        ("batch=1.5", "batch='1.5' must be"),
        ("batch=0", "batch=0 must be"),
        ("batch=-1:4:3", "batch=-1 must be"),
        ("churn=nan", "churn=nan must be"),
        ("link_gb_s=inf", "link_gb_s=inf must be"),
        ("link_gb_s=1:10", "must be LOW:HIGH:COUNT"),
        ("link_gb_s=10:1:3", "LOW < HIGH"),
        ("link_gb_s=1:10:1", "COUNT must be a whole number between 2"),
        ("link_gb_s=1:10:10000000", "between 2 and 100000"),
        ("link_gb_s=1:10:lots", "COUNT must be"),
        ("churn=0:0.3:log3", "must start above 0"),
        ("phase=decoding", "did you mean 'decode'?"),
        ("extrapolate=maybe", "extrapolate='maybe' must be"),
        ("selector_options=a", "'selector_options' is unknown"),
    ],
)
def test_what_is_no_axis_is_refused_with_the_way_out(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_axis(text)
    assert says in str(wrong.value)


@given(
    low=st.floats(1e-3, 1e3), factor=st.floats(1.5, 1e3), count=st.integers(2, 40), log=st.booleans()
)
def test_a_range_climbs_between_its_ends_and_can_be_typed_again(
    low: float, factor: float, count: int, *, log: bool
) -> None:
    values = spread(low, low * factor, count, log=log, whole=False)
    assert (values[0], values[-1], len(values)) == (low, low * factor, count)
    assert all(a <= b for a, b in itertools.pairwise(values[1:-1]))
    assert all(float(f"{value:.4g}") == value for value in values[1:-1])


@given(value=st.floats(allow_nan=True, allow_infinity=True))
def test_only_finite_numbers_within_bounds_become_values(value: float) -> None:
    knob = knob_named("churn")
    if 0 <= value <= 1:
        assert checked(knob, value) == value
    else:
        with pytest.raises(ConfigError):
            checked(knob, value)


def test_numbers_of_numpy_become_plain_ones() -> None:
    assert type(checked(knob_named("batch"), np.int64(4))) is int
    assert type(checked(knob_named("churn"), np.float64(0.5))) is float
    assert checked(knob_named("link_gb_s"), 10) == 10.0


def test_every_knob_but_the_pairs_can_be_an_axis() -> None:
    for name, knob in Scenario.knobs().items():
        if name != "selector_options":
            assert knob_named(name) == knob
