"""Advice: the best of what was tried, held against resident, and honest about what does not fit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.advise import TIE, Advice, Target, advise
from sparda_core.whatif.point import room
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.search import Choices, Option, most_rows

LONG = Scenario(context=131072, locality="infllm-v2")
SMALL = Scenario(shape="smollm2-135m", context=4096, locality="infllm-v2")
SOME = Choices(selectors=("forecast",), slot_factors=(1.0, 4.0), engines=("uva",), ctas=(2, 16))
FEW = Choices(
    selectors=("forecast",), runtimes=("resident", "offload-prefetch"), slot_factors=(1.0,), engines=("uva",), ctas=(2,)
)
MORE_HOST = LONG.turned(host_gb=1000.0)


def at(option: Option | None) -> Scenario:
    assert option is not None
    return option.scenario


@pytest.fixture(scope="module")
def long() -> Advice:
    return advise(MORE_HOST, choices=SOME)


def test_nothing_that_was_tried_is_faster_than_what_is_recommended(long: Advice) -> None:
    assert long.best is not None
    assert long.met
    best = long.best.tokens_per_s
    assert all(option.tokens_per_s <= best * (1 + TIE) for option in long.found.options)
    # By hand, at the batch recommended: every setting of the same pair.
    for factor, ctas in itertools.product((1.0, 4.0), (2, 8)):
        policy = "lru" if factor > 1 else "last-selection"
        other = at(long.best).turned(slot_factor=factor, ctas=ctas, policy=policy, batch=min(at(long.best).batch, 32))
        assert other.predict().tokens_per_s <= best * (1 + TIE)


def test_offloading_pays_where_more_rows_fit_than_on_the_device(long: Advice) -> None:
    assert long.pays
    assert at(long.best).runtime == "offload-prefetch"
    assert at(long.best).batch > at(long.resident).batch == most_rows(MORE_HOST.turned(runtime="resident"))
    assert long.over_resident is not None
    assert long.over_resident > 0.2
    assert long.best is not None
    assert long.resident is not None
    assert long.over_resident == pytest.approx(long.best.tokens_per_s / long.resident.tokens_per_s - 1)


def test_the_runner_up_is_another_pair(long: Advice) -> None:
    assert long.best is not None
    assert long.runner_up is not None
    assert long.runner_up.pair != long.best.pair
    assert long.compared[0] is long.best
    assert {option.pair for option in long.compared} == {
        "forecast x resident", "forecast x offload-sync", "forecast x offload-prefetch"
    }  # fmt: skip


def test_beyond_a_flip_another_pair_is_faster(long: Advice) -> None:
    assert long.best is not None
    flips = {turn.knob: turn for turn in long.flips}
    assert set(flips) == {"link_gb_s", "churn"}
    value = flips["link_gb_s"].value
    assert value is not None
    assert value < flips["link_gb_s"].at
    rates = {
        option.pair: option.tokens_per_s if option.scenario.runtime == "resident"
        else option.scenario.turned(link_gb_s=value).predict().tokens_per_s
        for option in long.compared
    }  # fmt: skip
    assert max(rates, key=lambda pair: rates[pair]) == flips["link_gb_s"].then != long.best.pair


def test_what_fits_on_the_device_stays_there() -> None:
    got = advise(SMALL, batch=4, choices=FEW)
    assert got.best is not None
    assert at(got.best).runtime == "resident"
    assert not got.pays
    assert got.over_resident is not None
    assert got.over_resident <= TIE
    assert at(got.best).batch == 4
    assert got.met


def test_a_batch_that_does_not_fit_is_served_as_far_as_it_goes() -> None:
    got = advise(LONG, batch=40, choices=FEW)
    assert got.best is not None
    assert not got.met
    assert 1 < at(got.best).batch < 40
    assert max(got.found.most.values()) < 40


def test_a_target_is_reached_with_the_shortest_step() -> None:
    got = advise(LONG, tokens_per_s=1500.0, choices=FEW)
    assert got.best is not None
    assert got.met
    assert all(got.best.step_s <= one.step_s * (1 + TIE) for one in got.compared if one.tokens_per_s >= 1500)
    assert not at(got.best).batch > 1 or at(got.best).turned(batch=at(got.best).batch - 1).predict().tokens_per_s < 1500
    beyond = advise(LONG, tokens_per_s=1e6, choices=FEW)
    assert not beyond.met
    assert beyond.feasible


def test_where_nothing_fits_the_numbers_are_told() -> None:
    got = advise(Scenario(profile="rtx-4090", context=2**20, locality="infllm-v2", host_gb=1.0), choices=FEW)
    assert not got.feasible
    assert not got.met
    assert not got.pays
    assert got.best is got.resident is got.runner_up is None
    assert got.problem is not None
    assert "not even one row fits" in got.problem
    assert "needs" in got.problem
    assert "GB" in got.problem


def test_only_offloading_may_fit() -> None:
    got = advise(Scenario(profile="rtx-4090", context=131072, locality="infllm-v2"), choices=FEW)
    assert got.best is not None
    assert got.resident is None or at(got.resident).batch >= 1
    assert got.pays
    assert at(got.best).runtime == "offload-prefetch"


def test_without_a_locality_more_slots_are_not_tried() -> None:
    got = advise(LONG.turned(locality=None), batch=8, choices=FEW)
    assert {option.scenario.slot_factor for option in got.found.options} == {1.0}


def test_a_pair_that_cannot_work_is_listed_with_the_reason() -> None:
    got = advise(SMALL, batch=2, choices=Choices(selectors=("query",), engines=("uva",), ctas=(2,)))
    assert "0 layers early" in got.found.refused["query x offload-prefetch"]
    assert at(got.best).selector == "query"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"batch": 0}, ConfigError, "batch=0"), ({"batch": 2, "tokens_per_s": 5.0}, ConfigError, "two targets"),
        ({"tokens_per_s": math.nan}, ConfigError, "finite and > 0"), ({"tokens_per_s": -1.0}, ConfigError, "> 0"),
        ({"choices": Choices(selectors=("forcast",))}, UnknownNameError, "did you mean 'forecast'"),
        ({"choices": Choices(runtimes=("residnet",))}, UnknownNameError, "did you mean 'resident'"),
        ({"choices": Choices(engines=("uav",))}, UnknownNameError, "did you mean 'uva'"),
        ({"choices": Choices(selectors=())}, ConfigError, "no selector to choose from"),
        ({"base": SMALL.turned(cluster=4), "choices": FEW}, ConfigError, "is a multiple of cluster=4"),
        ({"choices": Choices(ctas=(0,))}, ConfigError, "ctas=0 must be between 1"),
        ({"choices": Choices(slot_factors=(0.5,))}, ConfigError, "slot_factor=0.5"),
        ({"base": SMALL.turned(phase="prefill")}, ConfigError, "for decoding"),
        ({"choices": Choices(selectors=("query",), runtimes=("offload-prefetch",))}, ConfigError, "0 layers early"),
        ({"base": SMALL.turned(churn=0.9), "choices": FEW}, ConfigError, "churn=0.9 must be <="),
        ({"base": SMALL.turned(locality="nosy")}, UnknownNameError, "did you mean 'nosa'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        advise(**{"base": SMALL, **options})


def test_most_rows_is_the_edge_of_memory() -> None:
    for start in (LONG, LONG.turned(runtime="resident"), SMALL.turned(profile="rtx-4090", runtime="resident")):
        most = most_rows(start)
        assert room(start.turned(batch=most))[1] is None
        assert room(start.turned(batch=most + 1))[1] is not None or most == 4096


def test_the_memory_asked_for_is_the_memory_predicted() -> None:
    for start in (LONG, LONG.turned(runtime="resident"), LONG.turned(batch=1000), LONG.turned(host_dtype="fp8")):
        need, problem = room(start)
        got = start.predict()
        assert got.need == need
        assert str(got.problem) == str(problem)


def option(rate: float, *, step_s: float = 1.0, device: float = 1.0, pair: str = "a", batch: int = 1) -> Option:
    return Option(
        scenario=Scenario(selector=pair, batch=batch), step_s=step_s, tokens_per_s=rate, exposed_s=0.0, bound="hbm",
        device_bytes=device, host_bytes=0.0,
    )  # fmt: skip


def test_of_level_options_the_smaller_one_is_chosen() -> None:
    small, fast, slow = option(100.0), option(100.4, device=9.0), option(99.0, device=0.1)
    assert Target().choose([fast, small, slow]) is small
    assert Target().choose([fast, slow]) is fast


def test_a_target_in_tokens_turns_the_choice_to_the_step() -> None:
    target = Target(tokens_per_s=50.0)
    quick, fast, poor = option(60.0, step_s=1.0), option(90.0, step_s=2.0), option(40.0, step_s=0.1)
    assert target.choose([fast, quick, poor]) is quick
    assert target.margin(quick, fast) == 1.0
    assert Target(tokens_per_s=95.0).choose([fast, quick, poor]) is fast
