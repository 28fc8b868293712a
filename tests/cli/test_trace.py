from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sparda_core import trace
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.plan import Lane
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.resident import Resident
from sparda_core.spans import Span, Timeline, exposed_wait_ns
from sparda_core.trace import TraceSource, trace_events, write_trace
from tests.cli.stubs import Late, decode_plan, play

PREFETCH = decode_plan(OffloadPrefetch())
SYNC = decode_plan(OffloadSync(), Late())


def source(plan: Any = PREFETCH, label: str = "predicted", **options: int) -> TraceSource:
    return TraceSource(timeline=play(plan, label=label, **options), plan=plan)


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
    assert {e["tid"] for e in of(events, "X")} == {trace.LANE_THREADS[Lane.COMPUTE]}
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


def test_two_timelines_never_share_an_arrow() -> None:
    ids = [[e["id"] for e in of(trace_events([source(), source()]), "s") if e["pid"] == p] for p in (1, 2)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])


@pytest.mark.parametrize(("plan", "exposed"), [(PREFETCH, False), (SYNC, True)], ids=["prefetch", "sync"])
def test_the_counter_sums_to_the_exposed_wait(plan: Any, exposed: bool) -> None:  # noqa: FBT001
    one = source(plan, fetch_ns=2500)
    counters = of(trace_events([one]), "C")
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


def test_a_trace_too_large_for_a_viewer_is_refused_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 100)
    with pytest.raises(ConfigError, match=r"\d+ events, more than 100: record fewer steps"):
        write_trace(tmp_path / "big.json", [source()])
    assert list(tmp_path.iterdir()) == []


def test_a_trace_without_timelines_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one timeline"):
        trace_events([])


def test_a_written_trace_is_one_json_object_and_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("old")
    count = write_trace(file, [source()])
    read = json.loads(file.read_text())
    assert read["traceEvents"] == trace_events([source()])
    assert len(read["traceEvents"]) == count
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        write_trace(tmp_path / "absent" / "trace.json", [source()])
