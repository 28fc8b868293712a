from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import CapacityError, ConfigError, UnknownNameError
from sparda_core.facts import StepFacts
from sparda_core.policy import check_policy
from sparda_core.runtimes.gpu.capacity import CapacityPlan, plan_capacity
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.selectors.forecast import Forecast
from sparda_core.shapes import BlockSpec, ModelShape, named_shape
from sparda_core.simulator.memory import memory_need
from sparda_core.simulator.profile_file import load_profile
from sparda_core.work import WorkContext

GIB = 1 << 30
SHAPE = named_shape("minicpm4.1-8b")
SPEC = BlockSpec(sink=1, local=32, budget=96)


def plan(**changes: Any) -> CapacityPlan:
    sizes: dict[str, Any] = {
        "shape": SHAPE, "spec": SPEC, "places": 16, "tokens": 131072, "resident_layers": 1, "slots": 96,
        "forecast": True,
    }  # fmt: skip
    return CapacityPlan(**{**sizes, **changes})


@pytest.mark.parametrize("resident", [0, 1])
def test_twenty_eight_rows_of_128k_and_a_thousand_more_tokens_fit_a_host_of_128_gib(resident: int) -> None:
    store = plan(places=28, tokens=131072 + 1024, resident_layers=resident)
    assert store.host_bytes < 115 * GIB  # 13 GiB are left to everything else
    exact = 28 * (32 - resident) * (131072 + 1024) * 2 * 2 * 128 * 2  # K and V of 2 heads of 128 values of 2 bytes
    assert store.host_bytes == pytest.approx(exact, rel=0.01)
    store.check_host(120 * GIB)
    half = attrs.evolve(store, host_kv_bytes=1)
    assert half.host_bytes * 2 == store.host_bytes
    assert half.device_parts()["scales"] == store.host_blocks * 8


@pytest.mark.parametrize("shape", [SHAPE, named_shape("nosa-8b")], ids=lambda shape: shape.name)
def test_the_plan_and_the_simulator_count_the_same_where_they_mean_the_same(shape: ModelShape) -> None:
    for host_width in (1, 2):
        ours = plan(host_kv_bytes=host_width, slots=200, shape=shape)
        runtime, selector = OffloadPrefetch(slots=200), Forecast()
        steps = runtime.decode_plan(shape=shape, spec=SPEC, selector=selector)
        none = [[[0] * 2] * 16] * 32
        facts = StepFacts(
            new_tokens=1, budget=96, slots=200, active=[True] * 16, lengths=[131072] * 16, selected=none,
            misses=none, opened=none, late=none, wasted=none,
        )  # fmt: skip
        context = WorkContext(shape=shape, spec=SPEC, forecast=True, host_kv_bytes=host_width)
        need, parts = memory_need(steps, facts, context, load_profile("h200")), ours.device_parts()
        assert parts["weights"] == need.weights
        assert parts["slots"] == need.pools
        assert parts["resident pages"] == need.resident
        assert parts["scales"] == need.scales
        assert parts["token bias"] == need.bias == (16 * 64 * (131072 + 8191) * 4 if shape.token_bias else 0)
        assert parts["reserved"] == need.reserved
        assert ours.host_bytes == need.host
        assert parts["entries"] == pytest.approx(need.entries, rel=0.01)  # ours count the newest keys too


@given(memory=st.integers(30, 140))
def test_slots_found_from_a_memory_budget_are_the_most_that_fit(memory: int) -> None:
    found = plan_capacity(slots=None, **_asked(gpu_memory_bytes=memory * 10**9))
    assert found.slots % 8 == 0
    assert SPEC.budget <= found.slots <= 2048
    assert found.device_bytes <= memory * 10**9
    if found.slots < 2048:
        more = attrs.evolve(found, slots=found.slots + 8)
        assert more.device_bytes > memory * 10**9


def test_slots_that_were_asked_for_stay_and_a_budget_is_all_where_no_memory_is_named() -> None:
    assert plan_capacity(slots=104, **_asked(gpu_memory_bytes=10**11)).slots == 104
    assert plan_capacity(slots=None, **_asked()).slots == 96
    with pytest.raises(ConfigError, match="gpu_memory_bytes is None"):
        plan().with_most_slots()


def test_a_budget_that_is_no_multiple_of_eight_is_never_cut() -> None:
    spec = SPEC.with_budget(99)
    least = plan(spec=spec, slots=99)
    assert plan_capacity(slots=None, **_asked(spec=spec, gpu_memory_bytes=least.device_bytes)).slots == 99


def test_what_does_not_fit_is_refused_with_the_numbers_and_what_would() -> None:
    with pytest.raises(CapacityError) as raised:
        plan_capacity(slots=None, **_asked(places=64, gpu_memory_bytes=40 * 10**9))
    said = str(raised.value)
    assert f"{raised.value.need / 1e9:.2f} of 40.00 GB" in said
    assert raised.value.free == 40 * 10**9
    found = re.search(r"what fits: (\d+) rows of 131072 tokens or 64 rows of (\d+) tokens", said)
    assert found is not None
    rows, tokens = map(int, found.groups())
    assert 0 < rows < 64
    assert 0 < tokens < 131072
    for places, most in ((rows, 131072), (64, tokens)):
        plan_capacity(slots=96, **_asked(places=places, tokens=most, gpu_memory_bytes=40 * 10**9))
    for places, most in ((rows + 1, 131072), (64, tokens + 1)):
        with pytest.raises(CapacityError):
            plan_capacity(slots=96, **_asked(places=places, tokens=most, gpu_memory_bytes=40 * 10**9))


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(CapacityError, match="not even one row of one token"):
        plan_capacity(slots=None, **_asked(gpu_memory_bytes=10**10))


def test_a_host_that_is_too_small_is_refused_with_the_rows_that_fit() -> None:
    with pytest.raises(CapacityError, match="what fits: 7 rows of 131072"):
        plan().check_host(30 * GIB)
    with pytest.raises(CapacityError, match="raise host_limit_bytes"):
        plan(host_limit_bytes=10**6).check()
    assert plan(host_limit_bytes=10 * GIB).host_bytes <= 10 * GIB
    assert plan(resident_layers=32).host_bytes == 0


def test_a_plan_prints_and_goes_to_json() -> None:
    rows = plan().as_table()
    assert [size for tier, what, size in rows if (tier, what) == ("device", "all")] == [plan().device_bytes]
    assert sum(size for tier, what, size in rows if tier == "device" and what != "all") == plan().device_bytes
    told = json.loads(json.dumps(plan().as_json()))
    assert told["shape"] == SHAPE.name
    assert told["host_bytes"] == plan().host_bytes
    assert told["device_parts"]["slots"] == 31 * 16 * 2 * 96 * 32768


def test_a_capacity_plan_needs_no_torch() -> None:
    code = "import sys, sparda_core.runtimes.gpu.capacity; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _asked(**changes: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "shape": SHAPE, "spec": SPEC, "places": 16, "tokens": 131072, "resident_layers": 1, "forecast": True,
    }  # fmt: skip
    return {**sizes, **changes}


@pytest.mark.parametrize(
    ("name", "value"), [("early", 3), ("early", True), ("early", "x"), ("graph", 1), ("timeline", "x")]
)
def test_how_steps_are_issued_is_one_of_what_there_is(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r} must be one of"):
        GpuOptions.of(**{name: value})
    for known in (0, 1, 2, None):
        assert GpuOptions.of(early=known).early == known


def test_a_policy_that_is_no_name_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match="policy=None is unknown"):
        check_policy(None)  # type: ignore[arg-type]
