from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core import trace
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.plan import Lane, StepPlan
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.resident import Resident
from sparda_core.spans import Span, Timeline, exposed_wait_ns
from sparda_core.trace import Origin, TraceSource, trace_document, trace_events, write_trace
from sparda_core.trace_clock import microseconds
from sparda_core.trace_counters import WAIT, Usage
from sparda_core.trace_parts import LANE_THREADS
from tests.cli.stubs import Late, decode_plan, play

PREFETCH = decode_plan(OffloadPrefetch())
SYNC = decode_plan(OffloadSync(), Late())


def source(plan: StepPlan = PREFETCH, label: str = "predicted", **options: int) -> TraceSource:
    origin = Origin.MEASURED if label == "measured" else Origin.PREDICTED
    return TraceSource(timeline=play(plan, label=label, **options), plan=plan, origin=origin)


def of(events: list[dict[str, Any]], *phases: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] in phases]


def test_every_event_has_what_the_trace_format_asks_of_its_phase() -> None:
    need = {
        "M": {"args"}, "X": {"ts", "dur", "args"}, "C": {"ts", "args"},
        "s": {"ts", "id", "cat"}, "t": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"},
    }  # fmt: skip
    events = trace_events([source(SYNC)])
    assert {event["ph"] for event in events} == set(need)
    for event in events:
        assert {"name", "pid", "tid", "ph"} | need[event["ph"]] <= set(event)
        assert event.get("dur", 0) >= 0 <= event.get("ts", 0)


def test_measured_and_predicted_timelines_get_the_same_tracks() -> None:
    events = trace_events([source(label="measured", compute_ns=1700), source(PREFETCH, "predicted")])
    threads = [
        [(e["tid"], e["args"]["name"]) for e in of(events, "M") if e["name"] == "thread_name" and e["pid"] == process]
        for process in (1, 2)
    ]
    assert threads[0] == threads[1] == list(enumerate(map(str, Lane), start=1))
    labels = [e["args"]["name"] for e in of(events, "M") if e["name"] == "process_name"]
    assert labels == ["measured", "predicted"]


def test_a_lane_that_nothing_ran_on_still_has_its_track() -> None:
    plan = decode_plan(Resident())
    events = trace_events([source(plan)])
    assert {e["tid"] for e in of(events, "X")} == {LANE_THREADS[Lane.COMPUTE]}
    assert len([e for e in of(events, "M") if e["name"] == "thread_name"]) == len(Lane)


def test_slices_follow_one_another_on_each_track() -> None:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in of(trace_events([source(), source(SYNC)]), "X"):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(tracks) == 4
    for slices in tracks.values():
        for before, after in pairwise(slices):
            assert before["args"]["end_ns"] <= after["args"]["start_ns"]


def test_microseconds_agree_with_the_integer_nanoseconds_in_args() -> None:
    slices = of(trace_events([source(compute_ns=1001)]), "X")
    assert slices
    for event in slices:
        start, end = event["args"]["start_ns"], event["args"]["end_ns"]
        assert isinstance(start, int)
        assert isinstance(end, int)
        assert event["ts"] * 1000 == pytest.approx(start, abs=1e-3)
        assert event["dur"] * 1000 == pytest.approx(end - start, abs=1e-3)


def test_no_span_is_lost() -> None:
    one = source(steps=3)
    assert len(of(trace_events([one]), "X")) == len(one.timeline.spans) == 3 * len(one.plan.ops)


def test_arrows_lead_from_selection_through_fetch_to_attention_of_the_same_layer_and_step() -> None:
    events = trace_events([source(steps=2)])
    slices = of(events, "X")
    flows: dict[str, list[dict[str, Any]]] = {}
    for event in of(events, "s", "t", "f"):
        flows.setdefault(event["id"], []).append(event)
    met = []
    for arrows in flows.values():
        assert [event["ph"] for event in arrows] == ["s", "t", "f"]
        under = [
            next(s for s in slices if s["tid"] == a["tid"] and s["ts"] <= a["ts"] <= s["ts"] + s["dur"])
            for a in arrows
        ]
        assert [s["cat"] for s in under] == ["select", "fetch", "attend"]
        assert len({(s["args"]["layer"], s["args"]["step"]) for s in under}) == 1
        met.append((under[0]["args"]["layer"], under[0]["args"]["step"]))
    assert sorted(met) == [(layer, step) for layer in (1, 2, 3) for step in (0, 1)]


def test_no_two_arrows_share_an_id_and_ids_are_integers() -> None:
    # Perfetto reads a quoted id as hexadecimal: one like "1.2" loses its arrow without a word.
    ids = [event["id"] for event in of(trace_events([source(steps=3), source(), source(label="measured")]), "s")]
    assert all(isinstance(one, int) for one in ids)
    assert len(ids) == len(set(ids)) == 3 * (3 + 2 + 2)


def test_a_process_id_says_whether_it_was_measured_in_whatever_file() -> None:
    measured, predicted = source(label="measured"), source()
    files = {"one": [measured], "other": [predicted], "both": [predicted, measured, predicted, measured]}
    ids = {name: [told["pid"] for told in trace_document(of_file)["otherData"]["timelines"]]
           for name, of_file in files.items()}  # fmt: skip
    assert ids == {"one": [1], "other": [2], "both": [2, 1, 4, 3]}
    assert {event["pid"] for event in trace_events(files["both"])} == {1, 2, 3, 4}


@pytest.mark.parametrize(("plan", "exposed"), [(PREFETCH, False), (SYNC, True)], ids=["prefetch", "sync"])
def test_the_counter_sums_to_the_exposed_wait(plan: Any, exposed: bool) -> None:  # noqa: FBT001
    one = source(plan, fetch_ns=2500)
    counters = [event for event in of(trace_events([one]), "C") if event["name"] == WAIT]
    total = sum(event["args"]["ns"] for event in counters)
    assert total == sum(exposed_wait_ns(one.timeline, one.plan).values())
    assert bool(total) is exposed
    assert [c["args"]["ns"] for c in counters[1::2]] == [0] * (len(counters) // 2)


def test_operations_that_overlap_on_a_lane_are_refused() -> None:
    spans = [
        Span(name=f"mlp/{i}", kind="mlp", layer=i, lane=Lane.COMPUTE, start_ns=i * 5, end_ns=i * 5 + 9) for i in (0, 1)
    ]
    bad = TraceSource(timeline=Timeline(label="measured", spans=tuple(spans)), plan=PREFETCH)
    with pytest.raises(RecordingError, match="'mlp/1' of step 0 starts at 5 ns on lane compute"):
        trace_events([bad])


def test_a_step_too_large_for_a_viewer_is_refused_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 60)
    with pytest.raises(ConfigError, match=r"one step of the trace would hold up to \d+ events, more than 60"):
        write_trace(tmp_path / "big.json", [source()])
    assert list(tmp_path.iterdir()) == []


def test_too_many_steps_are_sampled_evenly_and_the_metadata_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trace_document([source(steps=9), source(SYNC, "measured", steps=9)])
    assert all(told["steps_drawn"] == list(range(9)) for told in whole["otherData"]["timelines"])
    monkeypatch.setattr(trace, "MAX_EVENTS", 400)
    assert len(whole["traceEvents"]) > 400
    document = trace_document([source(steps=9), source(SYNC, "measured", steps=9)])
    events = document["traceEvents"]
    assert len(events) <= 400
    for told in document["otherData"]["timelines"]:
        drawn = told["steps_drawn"]
        assert (drawn[0], drawn[-1]) == (0, 8)
        assert 1 < len(drawn) < 9 == told["steps"]
        assert told["steps_left_out"].startswith(f"{9 - len(drawn)} of 9")
        assert {e["args"]["step"] for e in of(events, "X") if e["pid"] == told["pid"]} == set(drawn)
    # What is drawn stands where it stood.
    stays = [e for e in of(whole["traceEvents"], "X") if e["args"]["step"] == 8 and e["pid"] == 2]
    assert [e for e in of(events, "X") if e["args"]["step"] == 8 and e["pid"] == 2] == stays


def test_an_arrow_without_one_of_its_slices_is_not_drawn() -> None:
    one = source(steps=1)
    spans = [
        attrs.evolve(span, end_ns=span.start_ns) if span.name == "select/2" else span
        for span in one.timeline.spans
        if span.name != "fetch/1"
    ]
    events = trace_events([attrs.evolve(one, timeline=Timeline(label="predicted", spans=tuple(spans)))])
    assert len(of(events, "s")) == len(of(events, "t")) == len(of(events, "f")) == 1


def test_events_of_every_track_are_in_order_of_time() -> None:
    usage = [Usage(at, at // 20000, {"hbm": float(at % 7), "h2d": 1.0}) for at in range(0, 40000, 700)]
    last: dict[tuple[object, ...], float] = {}
    events = trace_events([attrs.evolve(source(), usage=usage), source(SYNC, "measured")])
    for event in events:
        if event["ph"] != "M":
            track = event["pid"], event["tid"], event["name"] if event["ph"] == "C" else ""
            assert event["ts"] >= last.get(track, 0.0)
            last[track] = event["ts"]
    assert len(last) == 4 + 2 + 1  # lanes, resources, and one exposed wait: prefetch has none


def test_no_viewer_loses_a_nanosecond_to_microseconds_in_floating_point() -> None:
    every = [*range(100_000), *(2**k + j for k in range(17, 50) for j in range(-3, 4))]
    assert int(1001 / 1000 * 1000.0) == 1000  # the trouble
    assert all(int(microseconds(ns) * 1000.0) == ns for ns in every)


def test_counters_name_all_their_series_and_change_only_where_a_value_does() -> None:
    usage = [
        Usage(0, 0, {"sms_compute": 130, "sms_copy": 0, "flops": 5.0}),
        Usage(5, 0, {"sms_compute": 130, "sms_copy": 2}),
        Usage(9, 0, {"sms_compute": 130, "sms_copy": 2, "flops": 1.0}),
    ]  # fmt: skip
    document = trace_document([attrs.evolve(source(steps=1), usage=usage)])
    held = [e for e in of(document["traceEvents"], "C") if e["name"] == "SMs held"]
    assert [(e["ts"], e["args"]) for e in held] == [
        (0.0, {"compute": 130, "copies": 0}), (0.005, {"compute": 130, "copies": 2}),
    ]  # fmt: skip
    assert "SMs held" in document["otherData"]["legend"]
    assert "HBM" not in document["otherData"]["legend"]


def test_a_trace_without_timelines_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one timeline"):
        trace_events([])


def test_a_written_trace_is_one_json_object_and_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("old")
    count = write_trace(file, [source()])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    read = json.loads(file.read_text(), parse_constant=refuse)
    assert read["traceEvents"] == trace_events([source()])
    assert len(read["traceEvents"]) == count
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        write_trace(tmp_path / "absent" / "trace.json", [source()])
