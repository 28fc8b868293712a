"""A cell is predicted from its own plan: replayed, drawn, beside another stream, and on a CPU without its model."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.earlier import earlier_records
from sparda_core.bench.validate.folder import read_run
from sparda_core.bench.validate.predicting import (
    balance_of,
    drawn_facts,
    figures,
    planned_of,
    predict_record,
    scenario_of,
    spread,
)  # fmt: skip
from sparda_core.bench.validate.record import DRAWN, REPLAYED, Measured, Record
from sparda_core.bench.verdict.make import judge_record
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.simulator.profile_file import load_profile
from sparda_core.whatif.point import facts_of, plan_of

ROOT, DATA = Path(__file__).parents[3], Path(__file__).parent / "data"
DECODED = ROOT / "benchmarks" / "results" / "2026-11-30-decode-h200.json"
CELL = ValidationCell(selector="forecast", runtime="offload-prefetch", batch=16, context=65536)


@functools.cache
def earlier() -> tuple[Record, ...]:
    return earlier_records(json.loads(DECODED.read_text())["rows"])


def test_compact_facts_predict_to_the_nanosecond_what_whole_facts_do() -> None:
    scenario = attrs.evolve(scenario_of(CELL, "h200"), steps=3)
    pair = scenario.combination()
    facts = facts_of(scenario, pair, plan_of(scenario, pair))
    planned = planned_of(CELL, "h200")
    compact = CompactFacts.of_steps(facts)
    whole, short = planned.predict(facts), planned.predict(compact.step_facts())
    assert short.step_s == whole.step_s
    assert compact.mean_misses == whole.misses
    assert not np.array_equal(facts[0].misses, compact.step_facts()[0].misses), "they are spread evenly"


def test_a_measured_choice_has_a_launch_of_its_own_and_the_traces_behind_it() -> None:
    planned = planned_of(CELL, "h200")
    (facts,) = drawn_facts(CELL, "h200")
    context = planned.context.under(planned.plan)
    for layer, launches in ((0, 1), (5, 0)):
        op = planned.plan[f"select/{layer}"]
        assert planned.pair.selector.work(op, facts, context).launches == launches
        assert planned.selector.work(op, facts, context).launches == 2
        score = planned.plan[f"score/{layer}"]
        assert planned.selector.work(score, facts, context) == planned.pair.selector.work(score, facts, context)
    everything = planned_of(attrs.evolve(CELL, selector="dense", runtime="resident"), "h200")
    assert everything.selector == everything.pair.selector


def test_rows_of_different_lengths_have_no_compact_facts() -> None:
    (facts,) = drawn_facts(CELL, "h200")
    uneven = attrs.evolve(facts, lengths=np.arange(16) + 7000)
    with pytest.raises(RecordingError, match="lengths differs"):
        CompactFacts.of_steps([uneven])
    with pytest.raises(RecordingError, match="empty"):
        CompactFacts.of_steps([])


def test_earlier_rows_become_records_that_are_predicted_as_the_command_does() -> None:
    assert len(earlier()) > 60
    record = next(r for r in earlier() if r.cell.key == "forecast prefetch b16 128K churn 10% last-selection x1")
    got = predict_record(record, "h200")
    assert REPLAYED not in got.predicted, "nobody recorded its facts"
    asked = scenario_of(record.cell, "h200")
    pair = asked.combination()
    planned = planned_of(record.cell, "h200")
    untraced = attrs.evolve(planned, selector=pair.selector)
    facts = facts_of(asked, pair, plan_of(asked, pair))
    assert untraced.predict(facts).step_s == asked.predict().step_s, "but for the launches of the trace"
    assert got.predicted[DRAWN].step_s == planned.predict(facts).step_s > asked.predict().step_s
    assert abs(got.error() or 1) < 0.1
    assert got.predicted[DRAWN].profile_digest == load_profile("h200").digest


def test_recorded_facts_are_replayed_and_a_spread_of_them_stands_for_all() -> None:
    facts = CompactFacts.of_steps(tuple(drawn_facts(CELL, "h200")) * 4)
    measured = Measured(rounds_s=((7e-3,) * 4,), facts=facts, confirmed=4, block_bytes=32768.0)
    got = predict_record(Record(cell=CELL, tier="axis", stratum="link", measured=measured), "h200", steps=2)
    assert got.predicted[REPLAYED].step_s == pytest.approx(got.predicted[DRAWN].step_s, rel=1e-3)
    assert spread([*map(str, range(10))], 3) == ["0", "3", "6"]  # type: ignore[list-item, comparison-overlap]


def test_the_command_and_the_report_replay_one_median_step() -> None:
    """As steps are measured. One step of three that misses much moves a mean."""
    (fact,) = drawn_facts(CELL, "h200")[:1]
    steps = [attrs.evolve(fact, misses=fact.misses * by, late=fact.late * 0) for by in (0, 0, 1)]
    measured = Measured(
        rounds_s=((7e-3,) * 3,), facts=CompactFacts.of_steps(steps), confirmed=3, block_bytes=32768.0
    )  # fmt: skip
    made = Record(cell=CELL, tier="axis", stratum="link", measured=measured)
    told = predict_record(made, "h200").predicted[REPLAYED]
    assert told.step_s == judge_record(made, "h200").replayed_s
    each = [planned_of(CELL, "h200").predict([one]).step_s for one in steps]
    assert each[0] == each[1] < each[2]
    assert told.step_s == pytest.approx(each[0], rel=1e-6)


def test_another_stream_on_the_link_slows_what_waits_for_it() -> None:
    facts = drawn_facts(CELL, "h200")
    alone, beside, asked = (
        figures(planned_of(cell, "h200", background_bytes_per_s=taken), facts)
        for cell, taken in ((CELL, 0.0), (CELL, 20e9), (attrs.evolve(CELL, background_gb_s=20.0), None))
    )
    assert alone.transfer_s is not None
    assert beside.transfer_s is not None
    assert beside.transfer_s > 1.3 * alone.transfer_s
    assert asked.step_s == beside.step_s


def test_balance_is_copies_over_compute_and_grows_with_either() -> None:
    def ratio(**changes: Any) -> float:
        cell = attrs.evolve(CELL, **changes)
        copies_s, compute_s = balance_of(planned_of(cell, "h200"), drawn_facts(cell, "h200"))
        return copies_s / compute_s

    assert ratio() == pytest.approx(1.0, abs=0.2)
    assert ratio(churn=0.2) == pytest.approx(2 * ratio(), rel=0.1)
    assert ratio(ctas=1) > 1.2 * ratio()
    assert ratio(runtime="resident") == 0.0


def test_what_cannot_be_predicted_says_why() -> None:
    got = predict_record(Record(cell=attrs.evolve(CELL, ctas=64), tier="axis", stratum="link"), "h200")
    assert got.predicted[DRAWN].step_s is None
    assert "calibrated" in str(got.predicted[DRAWN].problem)
    large = predict_record(Record(cell=attrs.evolve(CELL, batch=200), tier="axis", stratum="link"), "h200")
    assert "host" in str(large.predicted[DRAWN].problem)


def test_a_cpus_cell_is_replayed_without_its_model() -> None:
    records = read_run(DATA / "tiny-cpu.json").records
    for record in records:
        got = predict_record(attrs.evolve(record, predicted={}), str(DATA / "tiny-cpu-profile.toml"))
        assert got.predicted[REPLAYED].step_s, record.cell.key
    with pytest.raises(ConfigError, match="random weights"):
        scenario_of(records[0].cell, "h200")
    bare = predict_record(attrs.evolve(records[0], identity={}), str(DATA / "tiny-cpu-profile.toml"))
    assert "measure it again" in str(bare.predicted[REPLAYED].problem)
