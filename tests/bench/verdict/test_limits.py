"""Bars: which cells they speak of, what they make of their errors, and that each can be missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparda_core.bench.verdict.judged import HOST, MANY_CTAS, OVERLAPPED, Judged, Part, Verdict, read_verdict
from sparda_core.bench.verdict.limits import ALL, GPU_LIMITS, HALVED, JudgedBar, judge, limits_of
from sparda_core.bench.verdict.mechanism import judge_parts
from sparda_core.bench.verdict.parts import BANDWIDTH, COPY_ALONE, EXPOSED, FARTHEST, SLOWDOWN
from sparda_core.errors import RecordingError
from sparda_core.simulator.step_models import LONGER
from tests.bench.verdict.cells import judged, verdict


def found(bars: list[JudgedBar], name: str, where: str = ALL) -> JudgedBar:
    (one,) = [one for one in bars if one.bar.name == name and one.bar.where == where]
    return one


def test_errors_are_of_tokens_per_second_and_signed() -> None:
    assert judged(error=0.1).error() == pytest.approx(0.1)
    assert judged(error=-0.2, measured=3.0).error() == pytest.approx(-0.2)
    assert judged(simple=0.3).error(LONGER) == pytest.approx(0.3)
    assert Judged(key="k", tier="axis", stratum="link", cell=judged().cell, drawn_s=1.0).error() is None


def test_statistics_are_taken_of_absolute_errors_of_the_tier_and_of_each_stratum() -> None:
    cells = [judged(error=e, stratum=s) for e, s in ((-0.02, "link"), (0.01, "compute"), (0.12, "link"))]
    bars = judge(verdict(*cells, judged(error=5.0, tier="axis")))
    median = found(bars, "interpolated: median error")
    assert median.bar.figure == pytest.approx(0.02)
    assert (median.cells, median.bar.met) == (3, True)
    assert found(bars, "interpolated: p90 error").bar.figure == pytest.approx(0.02 + 0.8 * 0.10)
    assert not found(bars, "interpolated: p90 error").bar.met
    assert found(bars, "interpolated: median error", "link").bar.figure == pytest.approx(0.07)
    assert found(bars, "interpolated: median error", "compute").bar.figure == pytest.approx(0.01)


def test_every_bar_of_a_gpu_can_be_met_and_missed() -> None:
    for limit in GPU_LIMITS:
        for times in (0.99, 1.01):
            off = limit.most * times
            cell = judged(error=off, replay=off, tier="axis" if limit.tier == "replay" else limit.tier)
            word = " (ambition)" if limit.ambition else ""
            one = found(judge(verdict(cell)), f"{limit.tier}: {limit.statistic} error{word}")
            assert one.bar.met == (times < 1), limit
            assert one.ambition == limit.ambition


def test_replays_are_judged_in_every_tier_and_only_where_there_are_any() -> None:
    bars = judge(verdict(judged(replay=0.01), judged(replay=-0.03, tier="axis"), judged(tier="axis")))
    assert (found(bars, "replay: max error").cells, found(bars, "replay: max error").bar.met) == (2, False)
    assert not [one for one in judge(verdict(judged())) if one.bar.name.startswith("replay")]


def test_strata_are_those_of_the_record_and_what_the_plan_and_the_copies_say() -> None:
    assert judged(stratum="balanced", overlaps=False).strata == ("balanced",)
    assert judged(stratum="balanced", overlaps=True, copy_ctas=3).strata == ("balanced", OVERLAPPED, MANY_CTAS)
    assert judged(stratum="link", overlaps=True, copy_ctas=2).strata == ("link",)
    assert judged(stratum=HOST, copy_ctas=16).strata == (HOST,)


def test_the_full_model_must_halve_the_error_of_the_longer_lane_where_sides_balance_and_overlap() -> None:
    name = f"median error / that of {LONGER}"
    good = judged(error=0.02, simple=-0.08, stratum="balanced", overlaps=True)
    waits = judged(error=0.5, simple=0.5, stratum="balanced", overlaps=False)
    one = found(judge(verdict(good, waits)), name, OVERLAPPED)
    assert one.bar.figure == pytest.approx(0.25)
    assert (one.cells, one.bar.met) == (1, True)
    bad = judged(error=0.05, simple=-0.08, stratum="balanced", overlaps=True)
    assert not found(judge(verdict(bad)), name, OVERLAPPED).bar.met
    assert HALVED == 0.5
    assert not [one for one in judge(verdict(waits)) if one.bar.name == name]


def test_a_cpu_has_bars_of_its_own() -> None:
    assert limits_of(verdict(device="cpu")) != GPU_LIMITS
    bars = judge(verdict(judged(error=0.09, tier="interpolated"), device="cpu"))
    assert found(bars, "interpolated: median error").bar.met


@pytest.mark.parametrize(
    ("name", "unit", "measured", "right", "wrong"),
    [
        (BANDWIDTH, "B/s", 40e9, 41.9e9, 42.1e9), (COPY_ALONE, "B/s", 40e9, 38.1e9, 37.9e9),
        (SLOWDOWN, "1", 1.10, 1.129, 1.131), (EXPOSED, "s", 20e-6, 24.9e-6, 25.1e-6),
        (EXPOSED, "s", 200e-6, 219e-6, 221e-6), (EXPOSED, "s", 0.0, 4.9e-6, 5.1e-6),
        (FARTHEST, "s", 200e-6, 181e-6, 179e-6),
    ],
)  # fmt: skip
def test_parts_have_bars_of_their_own(name: str, unit: str, measured: float, right: float, wrong: float) -> None:
    for predicted, met in ((right, True), (wrong, False)):
        part = Part(name=name, unit=unit, measured=measured, predicted=predicted)
        (one,) = judge_parts([judged(parts=[part], key="the cell"), judged()])
        assert one.bar.met == met
        assert one.bar.where == "worst at the cell"


def test_a_verdict_survives_the_way_through_its_file() -> None:
    part = Part(name="mlp", unit="s", measured=1.0, predicted=2.0)
    whole = verdict(judged(error=0.1, replay=0.01, parts=[part], groups=("a", "b"), repeatability=0.02), judged())
    assert Verdict.of(json.loads(whole.to_json())) == whole
    assert whole.to_json().count("\n") < 12, "a line a cell"


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("[]", '{"format": 0}', '{"format": 1, "head": {}, "cells": [{"key": "a"}]}', "{"):
        path.write_text(text)
        with pytest.raises(RecordingError, match=r"other\.json is no report|format=0"):
            read_verdict(path)


def test_a_cell_that_does_not_say_what_it_is_is_refused_when_it_is_read(tmp_path: Path) -> None:
    plain = json.loads(verdict(judged()).to_json())
    del plain["cells"][0]["cell"]["selector"]
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(RecordingError, match=r"verdict\.json is no report of a validation \('selector'\)"):
        read_verdict(path)
