"""The loop that measures a CPU, and what shows that it is under way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from sparda_core.cli.running import Log, fit_tokens
from sparda_core.errors import ConfigError
from sparda_core.plan import Lane
from sparda_core.registry import SELECTORS
from sparda_core.shapes import BlockSpec
from sparda_core.spans import Span, Timeline
from tests.cli.files import TINY

SPEC = BlockSpec(block=16, window=16, stride=8, budget=6, local=1)


@pytest.fixture(scope="module")
def decoder() -> Any:
    from sparda_core.models.tiny import tiny_model

    return tiny_model(TINY, forecast=False).decoder


def test_a_calibration_says_how_much_text_it_takes() -> None:
    from sparda_core.bench.calibrate_cpu import Calibration

    plan = Calibration(selectors=(SELECTORS.make("window"),), contexts=(64, 128), steps=3, warmup=2, spec=SPEC)
    assert plan.tokens == 133


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"selectors": ()}, "at least one selector"),
        ({"contexts": ()}, "at least one selector and one context"),
        ({"contexts": (128, 64)}, "ascending"),
        ({"contexts": (64, 64)}, "ascending"),
        ({"contexts": (0,)}, ">= 1"),
        ({"steps": 0}, "steps=0 must be >= 1"),
        ({"warmup": -1}, "warmup=-1"),
    ],
    ids=str,
)
def test_a_calibration_that_measures_nothing_is_refused(options: dict[str, Any], says: str) -> None:
    from sparda_core.bench.calibrate_cpu import Calibration

    with pytest.raises(ConfigError, match=says):
        Calibration(**{"selectors": (SELECTORS.make("window"),), **options})


def test_too_short_a_text_is_refused(decoder: Any) -> None:
    from sparda_core.bench.calibrate_cpu import Calibration, calibrate_cpu

    plan = Calibration(selectors=(SELECTORS.make("window"),), contexts=(64,), spec=SPEC)
    with pytest.raises(ConfigError, match="text gives 70 tokens, but calibration needs 72"):
        calibrate_cpu(decoder, list(range(70)), plan)


def test_a_busy_lane_is_busy_and_gets_more_to_do_when_it_was_not(decoder: Any) -> None:
    from sparda_core.bench.calibrate_cpu import BusyLane
    from sparda_core.compose import compose

    pair = compose(decoder, "window", "resident", spec=SPEC, threads=1)
    with BusyLane(pair) as lane:
        lane.fill()
        assert lane.busy()
        jobs = len(lane._queue)
        lane._lane.drain()
        assert not lane.busy()
        lane.fill()
        assert len(lane._queue) == 2 * jobs


def test_operations_beside_a_busy_lane_are_never_taken_for_operations_alone(decoder: Any) -> None:
    from sparda_core.bench.calibrate_cpu import step_samples
    from sparda_core.compose import compose

    pair = compose(decoder, "query", "resident", spec=SPEC, threads=1)
    with pair.open(timeline=True) as session:
        row = session.add()
        session.prefill(row, list(range(200)))
        result = session.decode({row: 1})
    assert result.timeline is not None
    alone = step_samples(pair, result.timeline, result.facts, beside=False)
    beside = step_samples(pair, result.timeline, result.facts, beside=True)
    assert len(alone.alone) == len(beside.beside) == len(pair.plan().ops)
    assert not any((alone.beside, beside.alone, beside.gaps_s))
    assert {sample.busy for sample in beside.beside} == {1.0}


def test_of_overlaps_within_a_step_only_whole_transfers_count(decoder: Any) -> None:
    from sparda_core.bench.calibrate_cpu import step_samples
    from sparda_core.compose import compose

    pair = compose(decoder, "random", "offload-prefetch", spec=SPEC, threads=1)
    with pair.open(timeline=True) as session:
        row = session.add()
        session.prefill(row, list(range(200)))
        result = session.decode({row: 1})
    assert result.timeline is not None
    first, second = sorted(result.timeline.lane(Lane.H2D), key=lambda span: span.layer)
    busy = Span(name="mlp/0", kind="mlp", layer=0, lane=Lane.COMPUTE, start_ns=0, end_ns=1000)
    spans = (
        busy,
        attrs.evolve(first, start_ns=0, end_ns=950),
        attrs.evolve(second, start_ns=950, end_ns=1025),
    )
    found = step_samples(pair, Timeline(label="", spans=spans), result.facts, beside=False)
    assert [(sample.key, sample.seconds, sample.busy) for sample in found.beside] == [("decode/fetch", 950e-9, 1.0)]


def clock(*times_s: float) -> Iterator[float]:
    yield from times_s


def test_a_log_has_one_line_for_what_took_a_while() -> None:
    lines: list[str] = []
    ticks = clock(0, 1, 5, 5.5, 6)
    log = Log(lines.append, least_s=2, clock=lambda: next(ticks))
    log("prefill", 512, 1024)
    log("prefill", 1024, 1024)
    log("quick", 1, 2)
    log("quick", 2, 2)
    assert lines == ["prefill: 1024 in 5.0 s\n"]


@pytest.mark.parametrize(("most", "tokens"), [(None, 90), (50, 50), (200, 90)])
def test_a_text_is_cut_only_where_asked(most: int | None, tokens: int) -> None:
    assert fit_tokens(list(range(90)), room=10, context=100, most=most) == list(range(tokens))


def test_a_text_too_long_says_where_to_cut_it() -> None:
    with pytest.raises(ConfigError, match=r"text of 91 tokens .* context of 100 tokens: cut it with --max-tokens 90"):
        fit_tokens(list(range(91)), room=10, context=100, most=None)
