"""Scenarios: knobs that are checked, named once, and that each move something."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.compose import compose
from sparda_core.errors import CombinationError, ConfigError, ProfileError, RecordingError, UnknownNameError
from sparda_core.registry import SELECTORS
from sparda_core.selectors.forecast import Forecast
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator.cpu import KindCost
from sparda_core.simulator.predict import Prediction
from sparda_core.simulator.profile_file import load_profile, save_profile
from sparda_core.whatif.point import MOST_KEPT, _kept_played, _kept_steady, facts_of, plan_of
from sparda_core.whatif.scenario import CHURN, Scenario
from tests.simulator.scenes import cpu

BASE = Scenario(batch=16, context=16384, churn=0.1)
LRU: dict[str, Any] = {"locality": "hisparse", "churn": None, "policy": "lru", "slot_factor": 2.0}
PREFILL: dict[str, Any] = {"phase": "prefill", "context": 8192}

#: Knob -> (what else is set on both sides, its other value). Every knob of Scenario is here.
MOVES: dict[str, tuple[dict[str, Any], Any]] = {
    "shape": ({}, "smollm2-135m"), "phase": ({}, "prefill"), "batch": ({}, 17), "context": ({}, 20000),
    "chunk": (PREFILL, 1024), "prefill": (PREFILL, "selector"), "churn": ({}, 0.2),
    "locality": ({"churn": None}, "hisparse"), "recording": ({"churn": None}, "smollm2/forecast-16"),
    "steps": (LRU, 3), "seed": ({**LRU, "steps": 2}, 1),
    "value_bytes": ({}, 1.0), "profile": ({}, "a100-sxm"), "gpus": ({}, 2), "pcie": ({}, 4), "link_gb_s": ({}, 20.0),
    "hbm_gb_s": ({}, 2000.0), "tflop_s": ({"batch": 200}, 20.0), "host_gb": ({}, 1.0), "launches": ({}, "eager"),
    "extrapolate": ({}, True), "selector": ({}, "infinigen"),
    "selector_options": ({"selector": "infinigen"}, (("channels", 8),)), "lead": ({}, 3),
    "runtime": ({}, "offload-sync"), "resident_layers": ({}, 10), "slots": ({}, 200),
    "slot_factor": ({**LRU, "slot_factor": None}, 4.0), "policy": (LRU, "last-selection"),
    "engine": ({}, "copy-engine"), "ctas": ({}, 8), "cluster": ({"ctas": 4, "batch": 200}, 4),
    "in_flight_kib": ({"churn": 0.5}, 16.0), "host_dtype": ({}, "fp8"), "budget": ({}, 64), "sink": ({}, 2),
    "local": ({}, 16), "block": ({}, 32), "window": ({}, 64), "stride": ({}, 32),
}  # fmt: skip


def figures(got: Prediction) -> Any:
    """Everything that a reader of a prediction sees."""
    times = (got.step_s, got.tokens_per_s, got.total_s, got.by_kind, got.late_blocks) if got.feasible else ()
    return attrs.asdict(got.need), times, got.facts[0].budget, got.feasible


def test_every_knob_has_a_case() -> None:
    assert MOVES.keys() == Scenario.knobs().keys()


@pytest.mark.parametrize("name", sorted(set(MOVES) - {"extrapolate", "sink", "local"}))
def test_every_knob_moves_something(name: str) -> None:
    given_, other = MOVES[name]
    start = BASE.turned(**given_)
    assert figures(start.predict()) != figures(start.turned(**{name: other}).predict())


@pytest.mark.parametrize("name", ["sink", "local"])
def test_the_forced_blocks_bound_what_can_churn(name: str) -> None:
    """They take no time of their own: a forced block is selected like any other. But it does not churn."""
    free = Scenario(locality="hisparse", churn=0.6, shape="smollm2-135m")
    assert free.predict().feasible
    with pytest.raises(ConfigError, match="lower churn, sink or local"):
        free.turned(**{name: 50}).predict()


def test_every_knob_says_what_it_is() -> None:
    for name, knob in Scenario.knobs().items():
        assert knob.name == name
        assert len(knob.help) > 10
        knob.check(getattr(Scenario(), name))


def test_an_unknown_knob_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'batch'"):
        Scenario.of({"bacth": 4})
    with pytest.raises(UnknownNameError, match="did you mean 'link_gb_s'"):
        BASE.turned(link_gbs=4.0)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch", 0, "between 1 and"), ("batch", 2**31, "between 1 and"), ("batch", True, "an integer"),
        ("batch", 4.0, "an integer"), ("batch", None, "an integer"), ("churn", math.nan, "between 0 and 1"),
        ("churn", -0.1, "between 0 and 1"), ("link_gb_s", math.inf, "between 1e-06 and"),
        ("link_gb_s", "50", "a number"), ("profile", 7, "a text"), ("extrapolate", 1, "True or False"),
        ("phase", "prefil", "did you mean 'prefill'"), ("host_dtype", "fp4", "did you mean 'fp8'"),
        ("launches", "grpah", "did you mean 'graph'"), ("pcie", 9, "between 3 and 6"), ("seed", -1, "between 0 and"),
        ("selector_options", 3, "must map names"), ("selector_options", {"x": []}, "must map names"),
    ],
)  # fmt: skip
def test_a_value_that_a_knob_cannot_have_is_refused_at_once(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        Scenario.of({name: value})
    assert name in str(refused.value) or name == "selector_options"


@pytest.mark.parametrize("name", [name for name, knob in Scenario.knobs().items() if knob.numeric])
@given(value=st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3)))
def test_a_numeric_knob_takes_a_number_in_its_bounds_or_refuses(name: str, value: Any) -> None:
    knob = Scenario.knobs()[name]
    number = isinstance(value, int if knob.kind is int else int | float) and not isinstance(value, bool)
    if (value is None and knob.optional) or (number and knob.least <= value <= knob.most):
        assert getattr(Scenario.of({name: value}), name) is value
    else:
        with pytest.raises(ConfigError, match=name):
            Scenario.of({name: value})


def test_a_scenario_can_be_written_down_and_made_again() -> None:
    made = Scenario(selector="random", selector_options={"seed": 7}, slot_factor=2.0, pcie=4)  # type: ignore[arg-type]
    assert Scenario.of(attrs.asdict(made)) == made
    assert hash(Scenario.of(attrs.asdict(made))) == hash(made)


def test_slots_are_given_once() -> None:
    with pytest.raises(ConfigError, match="set the same thing"):
        Scenario(slots=96, slot_factor=2.0)
    assert Scenario(slot_factor=2.5).slot_count() == 240
    assert Scenario(slots=100).turned(slot_factor=4.0).slot_count() == 384
    assert Scenario(slot_factor=4.0).turned(slots=100).slot_count() == 100
    assert Scenario().slot_count() == Scenario().budget


def test_a_lead_is_an_option_of_a_forecast() -> None:
    early, late = (BASE.turned(lead=lead) for lead in (3, 1))
    assert early.combination().plan().resident_layers == 3
    assert late.predict().step_s == BASE.predict().step_s
    with pytest.raises(CombinationError, match="0 layers early"):
        BASE.turned(lead=0).predict()
    at_once = BASE.turned(lead=0, runtime="offload-sync")
    assert at_once.predict().step_s > BASE.predict().step_s
    with pytest.raises(ConfigError, match="use lead=1 or more"):
        Forecast(lead=0).bind(shape=named_shape("nosa-8b"), spec=BlockSpec())
    with pytest.raises(ConfigError, match="lead=-1 must be an integer >= 0"):
        Forecast(lead=-1)


def test_the_lead_of_another_selector_is_fixed() -> None:
    at_once = BASE.turned(selector="query", runtime="offload-sync")
    assert at_once.turned(lead=0).predict().step_s == at_once.predict().step_s
    with pytest.raises(ConfigError, match="the lead of selector 'query' is 0"):
        at_once.turned(lead=1).predict()
    with pytest.raises(ConfigError, match="any the runtime wants"):
        BASE.turned(selector="window", lead=2).predict()


def test_rates_of_the_machine_scale_what_they_bound() -> None:
    hbm, flops = (BASE.machine().capacity()[name] for name in ("hbm", "flops"))
    plain, twice = (BASE.turned(hbm_gb_s=hbm * by / 1e9).predict().by_kind["head"] for by in (1, 2))
    # Six launches and what they take by themselves stay as they are.
    assert plain / 2 < twice < 0.56 * plain
    assert plain == BASE.predict().by_kind["head"]
    prompt = BASE.turned(phase="prefill", context=4096)
    plain, half = (prompt.turned(tflop_s=flops * by / 1e12).predict().by_kind["mlp"] for by in (1, 0.5))
    assert half == pytest.approx(plain * 2, rel=0.1)


def test_a_narrow_host_copy_halves_what_is_moved_and_stored() -> None:
    same, fp8 = (BASE.turned(host_dtype=name).predict() for name in ("same", "fp8"))
    assert fp8.need.host == same.need.host / 2
    assert same.need.scales == 0
    blocks = 16 * 16384 // 64
    assert fp8.need.scales == 31 * 2 * blocks * 8  # 31 offloaded layers, 2 KV heads, two float32 a block
    moved = [sum(span.args.get("link", 0) for span in p.timeline.spans if span.kind == "fetch") for p in (same, fp8)]
    assert moved[1] == moved[0] / 2


def test_gpus_share_the_host_and_add_up() -> None:
    one, four = (BASE.turned(gpus=n).predict() for n in (1, 4))
    assert four.tokens == 4 * one.tokens
    assert four.need.host == 4 * one.need.host
    assert four.need.device == one.need.device
    assert four.step_s >= one.step_s
    moving = BASE.turned(churn=0.5, context=8192)
    assert moving.turned(gpus=8).predict().transfer_s > 1.5 * moving.predict().transfer_s  # 200 GB/s of host memory
    most = one.need.host / 1e9 * 2
    assert BASE.turned(gpus=2, host_gb=most).predict().feasible
    short = BASE.turned(gpus=4, host_gb=most).predict()
    assert short.problem is not None
    assert short.problem.tier == "host"


def test_misses_follow_from_slots_and_policy_once_there_is_a_locality() -> None:
    start = BASE.turned(churn=None, locality="hisparse")
    once = start.predict().misses
    assert once == pytest.approx(0.30 * 96 * 31 * 16 * 2, rel=0.01)
    assert start.turned(slot_factor=2.0).predict().misses == once  # last-selection keeps no more
    twice, four = (start.turned(slot_factor=n, policy="lru").predict().misses for n in (2.0, 4.0))
    assert four < twice < once
    assert start.turned(churn=0.1).predict().misses < once
    assert start.churn_share() == 0.30
    assert start.turned(churn=0.1).churn_share() == 0.1
    assert Scenario().churn_share() == CHURN


def test_without_a_locality_slots_change_memory_alone() -> None:
    once, twice = BASE.predict(), BASE.turned(slot_factor=2.0, policy="lru").predict()
    assert once.misses == twice.misses
    assert twice.need.pools == 2 * once.need.pools
    assert "every newcomer is a miss" in once.provenance["locality"]


def test_steps_are_predicted_one_after_another() -> None:
    got = BASE.turned(**LRU, steps=3).predict()
    assert got.steps == len(got.facts) == 3
    assert [int(facts.lengths[0]) for facts in got.facts] == [16384, 16385, 16386]
    assert got.total_s == pytest.approx(3 * got.step_s)
    assert got.provenance["seed"] == "0"


def test_a_prefill_reads_a_prompt_chunk_by_chunk() -> None:
    start = BASE.turned(phase="prefill", context=5000, chunk=2048)
    got = start.predict()
    assert got.steps == 3
    assert got.tokens * 3 == pytest.approx(5000)
    assert got.tokens_per_s == pytest.approx(5000 / got.total_s)
    assert got.need.staging > 0
    assert got.misses == got.late_blocks == 0
    resident = start.turned(runtime="resident").predict()
    assert resident.need.host == 0
    assert resident.total_s <= got.total_s


def test_a_context_beyond_the_models_own_is_predicted_and_marked() -> None:
    beyond, within = Scenario().predict(), Scenario(context=65536).predict()
    assert beyond.provenance["beyond_native_context"] == "131072 of 65536 tokens"
    assert "beyond_native_context" not in within.provenance


def test_outside_the_calibrated_domain_is_an_error_unless_accepted_and_then_marked() -> None:
    many = BASE.turned(ctas=64)
    with pytest.raises(ProfileError, match="--extrapolate accepts it"):
        many.predict()
    got = many.turned(extrapolate=True).predict()
    assert "copy_ctas=64" in got.provenance["extrapolated"]
    assert "extrapolated" not in BASE.turned(extrapolate=True).predict().provenance


@pytest.mark.parametrize(
    ("knobs", "error", "says"),
    [
        ({"shape": "smollm"}, UnknownNameError, "did you mean 'smollm2-135m'"),
        ({"profile": "h20"}, UnknownNameError, "did you mean"),
        ({"profile": "none.toml"}, ProfileError, "none.toml"),
        ({"selector": "forcast"}, UnknownNameError, "did you mean 'forecast'"),
        ({"selector_options": {"leed": 1}}, ConfigError, "its options: lead"),
        ({"locality": "hisparce", "churn": None}, UnknownNameError, "did you mean 'hisparse'"),
        ({"locality": "none.toml"}, RecordingError, "none.toml"),
        ({"locality": "hisparse", "churn": 0.9}, ConfigError, "churn=0.9 must be <="),
        ({"locality": "hisparse", "policy": "lfu"}, ConfigError, "policy='lfu'"),
        ({"slots": 95}, ConfigError, "slots=95 must be >= budget=96"),
        ({"link_gb_s": 70.0}, ProfileError, "PCIe 5"),
        ({"pcie": 4, "link_gb_s": 50.0}, ProfileError, "PCIe 4"),
        ({"pcie": 4, "profile": "gh200"}, ProfileError, "C2C"),
        ({"engine": "copy-engine", "launches": "graph"}, ProfileError, "segments"),
        ({"engine": "thread"}, ProfileError, "write the plan with one of"),
        ({"phase": "prefill", "chunk": 16}, ConfigError, "chunk=16 makes 1024 chunks .*; use >= 17"),
        ({"ctas": 6, "cluster": 4}, ConfigError, "ctas=6 must be a multiple of cluster=4"),
        ({"resident_layers": 99}, ConfigError, "resident_layers=99"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(knobs: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        BASE.turned(**knobs).predict()


@pytest.mark.parametrize("name", ["gpus", "pcie", "launches", "extrapolate", "hbm_gb_s", "tflop_s", "host_gb"])
def test_a_cpu_has_no_knobs_of_a_gpu(name: str, tmp_path: Path) -> None:
    cost = KindCost(fixed_s=1e-3, driver="flops", per_unit_s=0.0)
    file = save_profile(cpu({"decode/mlp": cost}), tmp_path / "bench.toml")
    value = {"launches": "eager", "extrapolate": True, "pcie": 4, "gpus": 2}.get(name, 10.0)
    with pytest.raises(ConfigError, match=f"{name}=.* cannot be set on profile 'bench'"):
        Scenario.of({"profile": str(file), name: value}).machine()


def test_a_profile_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    save_profile(load_profile("h200"), file)
    first = BASE.turned(profile=str(file)).machine().digest
    save_profile(load_profile("a100-sxm"), file)
    os.utime(file, ns=(1, 1))
    assert BASE.turned(profile=str(file)).machine().digest != first


def test_a_selector_that_was_taken_back_is_unknown_again() -> None:
    start = BASE.turned(selector="mine")
    SELECTORS.register("mine", Forecast)
    try:
        assert start.predict().feasible
    finally:
        SELECTORS.unregister("mine")
    with pytest.raises(UnknownNameError, match="selector='mine'"):
        start.predict()


def test_a_dense_selector_attends_to_every_block_and_brings_none_back() -> None:
    dense, blocks = BASE.turned(selector="dense", runtime="resident"), BASE.context // BASE.block
    few, many = dense.predict(), dense.turned(budget=blocks).predict()
    assert (few.facts[0].selected == blocks).all()
    assert few.step_s == many.step_s > BASE.turned(runtime="resident").predict().step_s
    assert dense.turned(runtime="offload-sync", slot_factor=2.0).predict().facts[0].slots == 2 * blocks
    with pytest.raises(ConfigError, match="slots=100 must be >= budget=256"):
        dense.turned(runtime="offload-sync", slots=100).predict()


@pytest.mark.parametrize("misses", [{"churn": 0.5}, {"churn": None, "locality": "infllm-v2"}])
def test_a_window_takes_the_whole_budget_and_moves_nothing(misses: dict[str, Any]) -> None:
    got = BASE.turned(selector="window", **misses).predict()
    assert (got.facts[0].selected == BASE.budget).all()
    assert got.misses == 0
    assert "forced" in got.provenance["locality"]


@pytest.mark.parametrize("misses", [{"churn": 0.1}, {"churn": None, "locality": "infllm-v2"}])
def test_a_row_that_fits_into_its_budget_misses_nothing(misses: dict[str, Any]) -> None:
    got = BASE.turned(context=BASE.budget * BASE.block, **misses).predict()
    assert got.misses == 0
    assert "budget" in got.provenance["locality"]
    beyond = BASE.turned(context=(2 * BASE.budget) * BASE.block, **misses).predict()
    assert beyond.misses > 0


@pytest.mark.parametrize(("selector", "wants"), [("dense", "budget=256, local=32"), ("window", "budget=96, local=94")])
def test_a_combination_of_ones_own_is_told_the_blocks_that_its_selector_attends_to(selector: str, wants: str) -> None:
    load: dict[str, Any] = {"batch": 16, "context": BASE.context, "churn": 0.1}
    pair = compose(named_shape(BASE.shape), selector, "resident", spec=BASE.spec(), runtime_options={"engine": "uva"})
    with pytest.raises(ConfigError, match=f"compose it under {wants}"):
        pair.predict("h200", **load)
    wide = attrs.evolve(pair, spec=pair.selector.cut(pair.spec, BASE.context))
    known = BASE.turned(selector=selector, runtime="resident").predict()
    assert wide.predict("h200", **load).step_s == known.step_s


@attrs.frozen(kw_only=True)
class Listing(Forecast):
    """A third party's declaration that cannot be hashed."""

    layers: list[int] = attrs.field(factory=list)


def test_a_selector_that_cannot_be_hashed_is_predicted_all_the_same() -> None:
    SELECTORS.register("listing", Listing)
    try:
        got = BASE.turned(selector="listing").predict()
    finally:
        SELECTORS.unregister("listing")
    assert got.step_s == BASE.predict().step_s


@pytest.mark.parametrize("locality", [None, "hisparse"])
@pytest.mark.parametrize("context", [1, 64, 65, 96 * 64 - 1, 96 * 64])
def test_a_row_that_fits_into_its_budget_moves_nothing_whatever_the_churn(context: int, locality: str | None) -> None:
    got = Scenario(batch=2, context=context, churn=0.5, budget=96, locality=locality).predict()
    assert (got.misses, got.transfer_s) == (0, 0)


def test_a_row_one_block_longer_than_its_budget_begins_to_move_blocks() -> None:
    assert Scenario(batch=2, context=96 * 64 + 1, churn=0.1, budget=96).predict().misses > 0


@pytest.mark.parametrize("locality", [None, "hisparse"])
def test_facts_that_are_large_are_not_kept(locality: str | None) -> None:
    def kept(batch: int) -> int:
        before = [cache.cache_info().currsize for cache in (_kept_steady, _kept_played)]
        start = Scenario(shape="smollm2-135m", batch=batch, context=20_000, churn=0.1, locality=locality, seed=batch)
        facts_of(start, start.combination(), plan_of(start, start.combination()))
        after = [cache.cache_info().currsize for cache in (_kept_steady, _kept_played)]
        return sum(after) - sum(before)

    _kept_steady.cache_clear()
    _kept_played.cache_clear()
    assert kept(3) > 0
    assert kept(2 * MOST_KEPT // 90) == 0


@pytest.mark.parametrize(("name", "error"), [("profile", ProfileError), ("locality", RecordingError)])
def test_a_path_that_no_file_can_have_is_one_clear_error(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="cannot be read: embedded null"):
        BASE.turned(**{name: "mine\0.toml"}).predict()
