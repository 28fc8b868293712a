"""A CPU profile: fitted from samples whose truth is known, saved, loaded, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from sparda_core.errors import ProfileError, RecordingError
from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase
from sparda_core.simulator.cpu import KindCost, cost_key
from sparda_core.simulator.cpu_fit import fit_cpu_profile
from sparda_core.simulator.cpu_samples import CpuSamples, Sample, samples_of
from sparda_core.simulator.profile_file import load_profile, save_profile
from sparda_core.simulator.run import run_step, simulate
from sparda_core.spans import Timeline
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, cpu, facts, pipeline, plan

US = 1000
COSTS = {
    "decode/project": KindCost(fixed_s=5e-6, driver="flops", per_unit_s=1e-10, slowdown=1.2),
    "decode/diff": KindCost(fixed_s=4e-6, driver="hbm_bytes", per_unit_s=0.0),
    "decode/attend": KindCost(fixed_s=10e-6, driver="hbm_bytes", per_unit_s=2e-10, slowdown=1.5),
    "decode/mlp": KindCost(fixed_s=0.0, driver="hbm_bytes", per_unit_s=1e-10, slowdown=1.25),
    "decode/fetch": KindCost(fixed_s=20e-6, driver="h2d_bytes", per_unit_s=2e-10, slowdown=1.1),
}


def table(scale: float = 1.0) -> dict[str, Work]:
    return {
        Kind.PROJECT: Work(flops=scale * 1e6), Kind.DIFF: Work(hbm_bytes=1e3), Kind.ATTEND: Work(hbm_bytes=scale * 1e6),
        Kind.MLP: Work(hbm_bytes=scale * 4e6), Kind.FETCH: Work(h2d_bytes=scale * 1e6, hbm_bytes=scale * 2e6, pieces=4),
    }  # fmt: skip


def test_an_operation_alone_takes_its_fitted_time() -> None:
    made = plan(Op(kind=Kind.ATTEND, layer=0), Op(kind=Kind.MLP, layer=0), engine="thread")
    timeline = simulate(made, facts(), by_kind(table()), cpu(COSTS, dispatch_s=3e-6))
    assert [(s.start_ns, s.end_ns) for s in timeline.spans] == [(3 * US, 213 * US), (216 * US, 616 * US)]


def test_lanes_that_share_cores_slow_each_other() -> None:
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0), engine="thread")
    spans = {s.kind: s for s in simulate(made, facts(), by_kind(table()), cpu(COSTS)).spans}
    assert spans[Kind.FETCH].end_ns == 242 * US  # 20 us and 1 MB at 5 GB/s, at 1 / 1.1
    # 242 us at 1 / 1.25 are 193.6; the other 206.4 run alone.
    assert spans[Kind.MLP].end_ns == 448_400


def test_an_emulated_link_paces_the_copy_and_spares_the_compute() -> None:
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0), engine="thread")
    spans = {s.kind: s for s in simulate(made, facts(), by_kind(table()), cpu(COSTS).with_link(0.5e9)).spans}
    # Its fixed time hides in the pace; it works 220 us of its 2000.
    assert spans[Kind.FETCH].end_ns == 2000 * US
    assert spans[Kind.MLP].end_ns == pytest.approx(400 * US * (1 + 0.25 * 0.11), abs=2)


def test_a_link_faster_than_the_copy_changes_nothing() -> None:
    made = pipeline(3, early=True, engine="thread")
    runs = [simulate(made, facts(), by_kind(table()), p) for p in (cpu(COSTS), cpu(COSTS).with_link(50e9))]
    assert runs[0].spans == runs[1].spans


def test_waking_up_costs_only_those_who_waited() -> None:
    made = pipeline(3, early=False, engine="thread")
    machine = cpu(COSTS, dispatch_s=2e-6, wake_s=30e-6, copy_start_s=9e-6)
    spans = {s.name: s for s in simulate(made, facts(), by_kind(table()), machine).spans}
    assert spans["fetch/1"].start_ns == spans["diff/1"].end_ns + 9 * US
    assert spans["attend/1"].start_ns == spans["fetch/1"].end_ns + 30 * US
    assert spans["attend/0"].start_ns == spans["project/0"].end_ns + 2 * US


def test_a_fetch_of_nothing_is_not_submitted() -> None:
    made = pipeline(3, early=True, engine="thread")
    timeline = simulate(made, facts(), by_kind({**table(), Kind.FETCH: Work()}), cpu(COSTS))
    assert timeline.lane(Lane.H2D) == ()


@pytest.mark.parametrize("engine", ["uva", "copy-engine"])
def test_an_engine_of_a_gpu_is_refused_on_a_cpu(engine: str) -> None:
    with pytest.raises(ProfileError, match="one of: thread"):
        simulate(pipeline(3, early=True, engine=engine), facts(), by_kind(table()), cpu(COSTS))


def test_a_kind_that_was_not_measured_is_refused_by_name() -> None:
    made = plan(Op(kind="score", layer=0), engine="thread")
    with pytest.raises(ProfileError, match=r"no cost for 'decode/by hand:score'.*calibrate again"):
        simulate(made, facts(), lambda *_: Work(flops=1), cpu(COSTS))


def test_a_selectors_own_kind_has_a_cost_of_its_own() -> None:
    assert cost_key(Phase.DECODE, "forecast", "score") == "decode/forecast:score"
    assert cost_key(Phase.PREFILL, "forecast", Kind.MLP) == "prefill/mlp"


def with_driver(cost: KindCost, units: float) -> Work:
    values: dict[str, Any] = {cost.driver: units}
    return Work(**values)


def noisy(cost: KindCost, key: str, *, count: int, beside: bool, seed: int = 1) -> list[Sample]:
    """Samples of known truth, 2 % noise, one in ten interrupted."""
    draw = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        units = 10 ** draw.uniform(5, 7)
        seconds = (cost.fixed_s + cost.per_unit_s * units) * draw.normal(1, 0.02) * (5 if draw.random() < 0.1 else 1)
        busy = draw.uniform(0.5, 1.0) if beside else 0.0
        # In a share `busy` of the longer time it ran at 1 / slowdown.
        seconds /= 1 - busy + busy / cost.slowdown
        out.append(Sample(key=key, work=with_driver(cost, units), seconds=seconds, busy=busy))
    return out


def test_a_fit_finds_the_truth_through_noise_and_interruptions() -> None:
    costs = {key: cost for key, cost in COSTS.items() if cost.per_unit_s}
    alone = [s for key, cost in costs.items() for s in noisy(cost, key, count=200, beside=False)]
    beside = [s for key, cost in costs.items() for s in noisy(cost, key, count=200, beside=True, seed=2)]
    got = fit_cpu_profile(alone, beside, {"cpu": "made up", "ram_bytes": 8 * 2**30}, dispatch_s=[1e-6] * 19 + [1e-3])
    for key, cost in costs.items():
        fitted = got.costs[key]
        assert fitted.driver == cost.driver
        for units in (2e5, 1e6, 8e6):
            work = with_driver(cost, units)
            assert fitted.seconds(work) == pytest.approx(cost.seconds(work), rel=0.05)
        assert fitted.slowdown == pytest.approx(cost.slowdown, rel=0.05)
        assert fitted.samples == 200
        assert 0 < fitted.error < 0.05
    assert got.dispatch_s.value == pytest.approx(1e-6)
    assert got.device_bytes == 8 * 2**30


def test_a_fitted_profile_survives_saving(tmp_path: Path) -> None:
    alone = [s for key, cost in COSTS.items() if cost.per_unit_s for s in noisy(cost, key, count=9, beside=False)]
    got = fit_cpu_profile(alone, [], {"cpu": 'a "fast" one', "threads": 1}, name="mine")
    assert load_profile(save_profile(got, tmp_path / "mine.toml")) == got
    assert got.machine == {"cpu": 'a "fast" one', "threads": "1"}
    assert {cost.slowdown for cost in got.costs.values()} == {1.0}
    # An emulated link is a setting of a run, not a number of the machine.
    assert load_profile(save_profile(got.with_link(1e9), tmp_path / "linked.toml")) == got


def test_drivers_that_hardly_differ_give_a_time_in_proportion() -> None:
    samples = [Sample(key="decode/mlp", work=Work(hbm_bytes=1e6 + i), seconds=1e-3) for i in range(5)]
    cost = fit_cpu_profile(samples, [], {}).costs["decode/mlp"]
    assert cost.fixed_s == 0
    assert cost.seconds(Work(hbm_bytes=1e6)) == pytest.approx(1e-3, rel=1e-4)


def test_where_flops_and_bytes_tell_the_same_bytes_count() -> None:
    """Products of one row: twice the rows are twice the FLOPs, and the same weights."""
    samples = [
        Sample(key="decode/mlp", work=Work(flops=2e6 * size, hbm_bytes=4e6 * size), seconds=1e-3 * size)
        for size in (1, 1.5, 2) for _ in range(4)
    ]  # fmt: skip
    cost = fit_cpu_profile(samples, [], {}).costs["decode/mlp"]
    assert cost.driver == "hbm_bytes"
    assert cost.seconds(Work(flops=4e6, hbm_bytes=4e6)) == pytest.approx(1e-3)


def test_a_kind_without_any_driver_takes_its_median() -> None:
    samples = [Sample(key="decode/diff", work=Work(), seconds=s) for s in (1e-6, 2e-6, 9e-6)]
    assert fit_cpu_profile(samples, [], {}).costs["decode/diff"].seconds(Work(flops=1e9)) == 2e-6


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "no samples"),
        ([Sample(key="decode/mlp", work=Work(), seconds=1.0)] * 2, "'decode/mlp' has 2 samples alone, needs 3"),
        ([Sample(key="decode/mlp", work=Work(), seconds=0.0)] * 3, "must be > 0"),
    ],
)
def test_too_few_or_impossible_samples_are_refused(samples: list[Sample], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        fit_cpu_profile(samples, [], {})


def test_a_negative_slope_or_offset_is_never_fitted() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        samples = [
            Sample(key="decode/mlp", work=Work(flops=draw.uniform(1, 1e6)), seconds=draw.uniform(1e-6, 1e-3))
            for _ in range(12)
        ]
        cost = fit_cpu_profile(samples, [], {}).costs["decode/mlp"]
        assert cost.fixed_s >= 0
        assert cost.per_unit_s >= 0


def measured(scale: float, *, early: bool) -> CpuSamples:
    made, seen = pipeline(4, early=early, engine="thread"), facts(layers=4)
    work = by_kind(table(scale))
    return samples_of(
        simulate(made, seen, work, cpu(COSTS, dispatch_s=2e-6, wake_s=30e-6, copy_start_s=9e-6)), made, seen, work
    )


def test_fitting_timelines_of_a_known_machine_gives_that_machine_back() -> None:
    total = CpuSamples()
    for scale in (0.25, 0.5, 1.0, 2.0, 3.0):
        total += measured(scale, early=False) + measured(scale, early=True)
    got = fit_cpu_profile(
        total.alone, total.beside, {"ram_bytes": 1}, dispatch_s=total.gaps_s, wake_s=total.wakes_s,
        copy_start_s=total.starts_s,
    )  # fmt: skip
    gaps = [q.value for q in (got.dispatch_s, got.wake_s, got.copy_start_s)]
    assert gaps == pytest.approx([2e-6, 30e-6, 9e-6])
    made, seen = pipeline(4, early=True, engine="thread"), facts(layers=4)
    for scale in (0.3, 1.7):
        work = by_kind(table(scale))
        want = run_step(made, seen, work, cpu(COSTS, dispatch_s=2e-6, wake_s=30e-6, copy_start_s=9e-6))[1]
        assert run_step(made, seen, work, got)[1] == pytest.approx(want, rel=0.03)


def test_samples_know_what_ran_beside_them() -> None:
    sync, early = measured(1.0, early=False), measured(1.0, early=True)
    assert all(sample.busy == 0 for sample in sync.alone)
    assert not sync.beside
    fetches = [s for s in early.alone + early.beside if s.key == "decode/fetch"]
    assert len(fetches) == 3
    assert all(sample.busy > 0.9 for sample in fetches)
    assert any(sample.key != "decode/fetch" for sample in early.beside)


def test_a_timeline_of_another_plan_is_refused() -> None:
    made, other = pipeline(3, early=True, engine="thread"), pipeline(2, early=True, engine="thread")
    timeline = simulate(made, facts(), by_kind(table()), cpu(COSTS))
    with pytest.raises(RecordingError, match="belongs to no operation"):
        samples_of(timeline, other, facts(), by_kind(table()))
    with pytest.raises(RecordingError, match="none of the 0 facts"):
        samples_of(timeline, made, [], by_kind(table()))


def test_steps_of_a_timeline_take_the_facts_of_their_step() -> None:
    made = plan(Op(kind=Kind.MLP, layer=0), engine="thread")
    seen: list[StepFacts] = [facts(rows=1), facts(rows=7)]
    spans = [attrs.evolve(s, step=step, start_ns=s.start_ns + step * US * US, end_ns=s.end_ns + step * US * US)
             for step in range(2) for s in simulate(made, seen[0], by_kind(table()), cpu(COSTS)).spans]  # fmt: skip
    got = samples_of(Timeline(label="two", spans=spans), made, seen, lambda _, f: Work(flops=f.rows))
    assert [sample.work.flops for sample in got.alone] == [1, 7]
