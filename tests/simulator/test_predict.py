"""Predictions: what they add up to, what bounds them, what does not fit; and an H200 against what was measured."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator.bound import BOUNDS, critical_path
from sparda_core.simulator.memory import memory_need
from sparda_core.simulator.predict import Prediction, predict
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.run import WorkOfOp
from sparda_core.work import Work, WorkContext
from tests.simulator.scenes import CONTEXT, ByHand, by_kind, facts, gpu, pipeline, plan

EIGHT = named_shape("minicpm4.1-8b")
EIGHT_SPEC = BlockSpec(sink=1, local=32, budget=96)
EIGHT_CONTEXT = WorkContext(shape=EIGHT, spec=EIGHT_SPEC)
TABLE: dict[str, Work] = {
    Kind.PROJECT: Work(hbm_bytes=10e6), Kind.DIFF: Work(hbm_bytes=1e6), Kind.ATTEND: Work(hbm_bytes=5e6),
    Kind.MLP: Work(flops=2e9), Kind.FETCH: Work(h2d_bytes=30 * 50e3, pieces=1, sms=2),
}  # fmt: skip


def of(
    made: StepPlan, work: WorkOfOp, *, seen: StepFacts | None = None, profile: Profile | None = None,
    context: WorkContext = CONTEXT, steps: int = 1,
) -> Prediction:  # fmt: skip
    return predict(
        made,
        seen or facts(),
        context=context,
        selector=ByHand(),
        profile=profile or gpu(),
        work_of_op=work,
        steps=steps,
    )


def test_exposed_and_hidden_transfer_add_up_to_the_transfer() -> None:
    early, late = (of(pipeline(3, early=flag), by_kind(TABLE)) for flag in (True, False))
    assert late.transfer_s == early.transfer_s == pytest.approx(60e-6)
    assert late.exposed_s == early.hidden_s == pytest.approx(60e-6)
    assert late.hidden_s == early.exposed_s == 0
    assert late.step_s - early.step_s == pytest.approx(60e-6)


def test_a_step_time_is_a_mean_that_counts_the_gap_between_steps() -> None:
    once, often = (of(pipeline(3, early=True), by_kind(TABLE), profile=gpu(step_s=9e-6), steps=n) for n in (1, 64))
    assert once.step_s == often.step_s == pytest.approx((105 + 2 + 9) * 1e-6)
    assert often.tokens_per_s == pytest.approx(1 / often.step_s)
    assert once.by_kind == pytest.approx(often.by_kind)
    assert once.exposed_s == often.exposed_s


def test_tokens_per_second_count_every_active_row() -> None:
    got = of(pipeline(3, early=True), by_kind(TABLE), seen=facts(rows=5))
    assert got.tokens_per_s == pytest.approx(5 / got.step_s)


def test_the_breakdown_names_every_kind_longest_first() -> None:
    got = of(pipeline(3, early=True), by_kind(TABLE)).by_kind
    assert got == pytest.approx({"fetch": 60e-6, "mlp": 60e-6, "project": 30e-6, "attend": 15e-6, "diff": 2e-6})
    assert list(got.values()) == sorted(got.values(), reverse=True)


@pytest.mark.parametrize(
    ("kind", "work", "gap_s", "bound"),
    [
        (Kind.MLP, Work(flops=1e10), 0.0, "compute"),
        (Kind.ATTEND, Work(hbm_bytes=1e9), 0.0, "hbm"),
        (Kind.FETCH, Work(h2d_bytes=1e8, pieces=1, sms=2), 0.0, "pcie"),
        (Kind.DIFF, Work(hbm_bytes=1e9), 0.0, "select"),
        (Kind.MLP, Work(), 30e-6, "launch"),
    ],
)
def test_what_takes_most_of_the_critical_path_is_the_bound(kind: Kind, work: Work, gap_s: float, bound: str) -> None:
    got = of(pipeline(3, early=False), by_kind({**TABLE, kind: work}), profile=gpu(gap_s=gap_s))
    assert got.bound == bound
    assert set(got.spent) == set(BOUNDS)
    assert sum(got.spent.values()) == pytest.approx(got.step_s)


def test_a_hidden_transfer_is_not_on_the_critical_path() -> None:
    early, late = (pipeline(3, early=flag) for flag in (True, False))
    kinds = [{span.kind for span in critical_path(of(p, by_kind(TABLE)).timeline, p)} for p in (early, late)]
    assert Kind.FETCH not in kinds[0]
    assert Kind.FETCH in kinds[1]


def moving(blocks: int) -> StepFacts:
    """Every layer but the first misses so many blocks, half of them in each KV head."""
    misses = np.full((3, 1, 2), blocks // 2)
    misses[0] = 0
    return attrs.evolve(facts(), misses=misses)


def test_blocks_are_late_that_had_not_arrived_when_they_were_wanted() -> None:
    early, late = (of(pipeline(3, early=flag), by_kind(TABLE), seen=moving(6)) for flag in (True, False))
    assert late.late_blocks == late.misses == 12  # synchronous: every block is waited for
    assert early.late_blocks == 0
    # Of 100 us of copying, 35 lie beside 5 us of attention, 20 of MLP and 10 of projection; the diff of the
    # layer after next, 1 us, comes too in the first. So 2.16 and 2.1 of 6 blocks have arrived.
    slow = by_kind({**TABLE, Kind.FETCH: Work(h2d_bytes=100 * 50e3, pieces=1, sms=2)})
    half = of(pipeline(3, early=True), slow, seen=moving(6))
    assert half.exposed_s == pytest.approx((64 + 65) * 1e-6)
    assert half.late_blocks == 4 + 4


def test_lateness_and_bound_are_means_over_steps() -> None:
    made, none = pipeline(3, early=False), attrs.evolve(facts(), misses=np.zeros((3, 1, 2), np.int64))

    def work(op: Op, seen: StepFacts) -> Work:
        return Work() if op.kind == Kind.FETCH and not seen.misses.any() else TABLE[op.kind]

    each = [of(made, work, seen=seen) for seen in (none, moving(6))]
    both = predict(made, [none, moving(6)], context=CONTEXT, selector=ByHand(), profile=gpu(), work_of_op=work)
    assert both.late_blocks == sum(one.late_blocks for one in each) / 2 == 6
    for name in BOUNDS:
        assert both.spent[name] == pytest.approx(sum(one.spent[name] for one in each) / 2)


def test_a_point_that_does_not_fit_has_no_time() -> None:
    got = of(pipeline(3, early=True), by_kind(TABLE), seen=facts(rows=1, length=2 * 10**9))
    assert not got.feasible
    assert got.need.device > 64e9
    for name in ("step_s", "total_s", "tokens_per_s", "timeline", "exposed_s", "by_kind", "bound", "misses",
                 "late_blocks"):  # fmt: skip
        with pytest.raises(CapacityError, match="out of memory on profile 'round'"):
            getattr(got, name)


def test_the_host_can_be_too_small_too() -> None:
    short = attrs.evolve(
        gpu(), memory=attrs.evolve(gpu().memory, host_bytes=gpu().memory.host_bytes.with_value(1e5, ""))
    )
    got = of(pipeline(3, early=True), by_kind(TABLE), seen=facts(length=9000), profile=short)
    assert got.problem is not None
    assert got.problem.tier == "host"
    assert got.problem.need == got.need.host > got.problem.free == 1e5


def test_memory_is_counted_as_laid_out() -> None:
    need = memory_need(pipeline(3, early=True), facts(rows=2, length=100, slots=9), CONTEXT, gpu())
    block = 2 * 16 * 4 * 2  # K and V of 16 tokens, 4 values of 2 bytes
    assert need.resident == 1 * 2 * (2 * 16) * block  # 7 blocks of 100 tokens a row lie in one page of 16, 2 KV heads
    assert need.pools == 2 * 2 * 2 * 9 * block  # 2 layers, 2 rows, 2 KV heads
    assert need.host == 2 * 2 * 2 * 16 * block  # one page of 16 blocks for each
    assert need.entries == 3 * 2 * 2 * 24 * 4 * 2  # (100 - 8) // 4 + 1 entries a row
    assert need.weights == CONTEXT.shape.weights * 2
    assert need.staging == 0
    staged = plan(*pipeline(3, early=True).ops, Op(kind=Kind.STAGE, layer=1, lane=Lane.H2D), resident=1)
    assert memory_need(staged, facts(rows=2), CONTEXT, gpu()).staging == 2 * 2 * (2 * 7) * block
    with_forecast = attrs.evolve(CONTEXT, forecast=True)
    more = memory_need(pipeline(3, early=True), facts(), with_forecast, gpu()).weights - need.weights
    assert more == 3 * 8 * 2 * 4 * 2  # one for each of three layers: hidden 8 to 2 heads of 4


def test_where_it_comes_from_is_told() -> None:
    told = of(pipeline(3, early=True), by_kind(TABLE), profile=load_profile("h200")).provenance
    assert told["profile"] == "h200"
    assert told["profile_digest"] == load_profile("h200").digest
    assert "reserved_bytes" in told["priors"]
    assert (told["engine"], told["launches"]) == ("uva", "graph")


@pytest.mark.parametrize(("steps", "several"), [(0, False), (2, True)])
def test_impossible_requests_are_refused(steps: int, *, several: bool) -> None:
    seen = [facts(), facts()] if several else facts()
    with pytest.raises(ConfigError, match="steps="):
        predict(
            pipeline(3, early=True), seen, context=CONTEXT, selector=ByHand(), profile=gpu(), steps=steps,
            work_of_op=by_kind(TABLE),
        )  # fmt: skip


def eight_work(op: Op, seen: StepFacts) -> Work:
    """Bytes and FLOPs of a decode step of the 8B shape, roughly: weights, blocks, misses."""
    weights = {
        Kind.PROJECT: EIGHT.hidden * (EIGHT.q_heads + 2 * EIGHT.kv_heads) * EIGHT.head_dim,
        Kind.OUTPUT: EIGHT.hidden * EIGHT.q_heads * EIGHT.head_dim,
        Kind.MLP: 3 * EIGHT.hidden * EIGHT.ffn,
        Kind.HEAD: EIGHT.vocab * EIGHT.hidden,
    }  # fmt: skip
    if op.kind == Kind.FETCH:
        blocks = int(seen.misses[op.layer].sum())
        moved = blocks * EIGHT_CONTEXT.host_block_bytes
        return Work(h2d_bytes=moved, hbm_bytes=moved, pieces=blocks, sms=2)
    if op.kind == Kind.ATTEND:
        return Work(hbm_bytes=int(seen.selected[op.layer].sum()) * EIGHT_CONTEXT.block_bytes)
    size = weights.get(Kind(op.kind), 0)
    return Work(flops=2 * size * seen.rows, hbm_bytes=2 * size)


def eight_plan(*, early: bool, engine: str = "uva", fetch: bool = True) -> StepPlan:
    made = pipeline(32, early=early, engine=engine, fetch=fetch)
    ops = []
    for op in made.ops:
        ops += [Op(kind=Kind.OUTPUT, layer=op.layer), op] if op.kind == Kind.MLP else [op]
    return attrs.evolve(made, ops=(*ops, Op(kind=Kind.HEAD)), resident_layers=1 if fetch else 32)


def eight(
    made: StepPlan, *, batch: int, churn: float = 0.1, profile: str = "h200", context: int = 131072
) -> Prediction:
    seen = steady_facts(shape=EIGHT, spec=EIGHT_SPEC, batch=batch, context=context, churn=churn, resident_layers=1)
    return of(made, eight_work, seen=seen, profile=load_profile(profile), context=EIGHT_CONTEXT)


def test_an_8b_model_cannot_decode_faster_than_its_weights_are_read() -> None:
    read_s = (EIGHT.weights - EIGHT.vocab * EIGHT.hidden) * 2 / 4.23e12
    got = eight(eight_plan(early=True, fetch=False), batch=1)
    assert read_s < got.step_s < 1.3 * read_s
    assert got.bound == "hbm"


def test_the_decode_products_of_a_layer_take_what_was_measured_at_batch_1_and_16() -> None:
    profile = load_profile("h200")
    sizes = (4096 * 4096, 4096 * 4096, *([4096 * 16384] * 3))
    ops = [Op(kind="product", layer=i) for i in range(5)]
    for batch, measured_s in ((1, 129.3e-6), (16, 131.5e-6), (64, 132.8e-6)):
        table = {op.name: Work(flops=2 * s * batch, hbm_bytes=2 * s) for op, s in zip(ops, sizes, strict=True)}
        got = of(plan(*ops), by_kind(table), profile=profile)
        # Those were timed in a session of faster memory than the profile's.
        assert got.step_s - profile.step_s == pytest.approx(measured_s, rel=0.035)


# Microseconds of one layer's misses by two CTAs beside nothing, as measured, with 12 us of events and launch in them.
@pytest.mark.parametrize(
    ("batch", "budget_blocks", "churn", "measured_us"),
    [(16, 96, 0.10, 227), (16, 96, 0.20, 418), (28, 96, 0.10, 384), (64, 96, 0.10, 847), (64, 96, 0.20, 1596)],
)
def test_a_gather_of_one_layers_misses_takes_what_was_measured(
    batch: int, budget_blocks: int, churn: float, measured_us: float
) -> None:
    blocks = round(batch * EIGHT.kv_heads * budget_blocks * churn)
    op = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D)
    moved = Work(h2d_bytes=blocks * 32768, hbm_bytes=blocks * 32768, pieces=blocks, sms=2)
    got = of(plan(op), by_kind({Kind.FETCH: moved}), profile=load_profile("h200"))
    assert got.transfer_s == pytest.approx((measured_us - 12) * 1e-6, rel=0.08)


@pytest.mark.parametrize("profile", ["h200", "h100-sxm"])
@pytest.mark.parametrize("churn", [0.03, 0.1])
def test_prefetch_lies_between_resident_and_sync(profile: str, churn: float) -> None:
    resident = eight(eight_plan(early=True, fetch=False), batch=1, churn=churn, profile=profile, context=16384)
    early, late = (
        eight(eight_plan(early=flag), batch=1, churn=churn, profile=profile, context=16384) for flag in (True, False)
    )
    assert resident.step_s < early.step_s < late.step_s


def test_prefetch_saves_most_where_the_link_is_just_hidden() -> None:
    """Published for an H100 at 128K: 1.43, 1.69, 1.57, 1.45 at batch 4, 8, 16, 32."""
    saved = []
    for batch in (4, 8, 16, 32):
        early, late = (eight(eight_plan(early=flag), batch=batch) for flag in (True, False))
        saved.append(late.step_s / early.step_s)
    assert max(saved) in saved[1:3]
    assert all(1.2 < ratio < 2 for ratio in saved)
    assert eight(eight_plan(early=True), batch=16).bound == "pcie"


def test_the_copy_engine_needs_no_sms_but_pays_for_small_pieces() -> None:
    uva, engine = (eight(eight_plan(early=False, engine=name), batch=16) for name in ("uva", "copy-engine"))
    assert engine.transfer_s > 1.1 * uva.transfer_s
    # But for diffs, of whose lists the host must be told.
    compute = [
        sum(s.end_ns - s.start_ns for s in p.timeline.lane(Lane.COMPUTE) if s.kind != Kind.DIFF) for p in (uva, engine)
    ]
    assert compute[0] == compute[1]  # sync: nothing runs beside a copy


def test_an_h200_holds_24_resident_sequences_of_128k_and_not_32() -> None:
    assert eight(eight_plan(early=True, fetch=False), batch=24).feasible
    got = eight(eight_plan(early=True, fetch=False), batch=32)
    assert got.problem is not None
    assert got.problem.tier == "device"
    assert got.need.resident == pytest.approx(32 * 4 * 2**30)
    # 31 of 32 layers are on the host: 32 sequences of 3.9 GiB fit into the 126 GiB of that machine, 33 do not.
    assert eight(eight_plan(early=True), batch=32).feasible
    assert not eight(eight_plan(early=True), batch=33).feasible
