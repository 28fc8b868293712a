"""`sparda timeline --predicted`: the file as a viewer would read it, and everything that must not leave one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sparda_core.cli.main import main
from tests.cli.conftest import Refusal

Captured = pytest.CaptureFixture[str]
Event = dict[str, Any]

ASKED = ("timeline", "--predicted", "--batch", "16", "--churn", "0.1", "--steps", "2")


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def strict(file: Path) -> Any:
    return json.loads(file.read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What the command printed, and the trace that it wrote."""
    folder = tmp_path_factory.mktemp("traces") / "new" / "folder"
    command = [sys.executable, "-m", "sparda_core.cli.main", *ASKED, "--out", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert [entry.name for entry in folder.iterdir()] == ["predicted.json"]
    return json.loads(done.stdout), strict(folder / "predicted.json")


def of(document: Any, *phases: str) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] in phases]


def test_slices_of_a_track_follow_one_another_as_a_viewer_reads_them(told: tuple[Any, Any]) -> None:
    tracks = defaultdict(list)
    for event in of(told[1], "X"):
        # Viewers cut microseconds to whole nanoseconds.
        start, length = int(event["ts"] * 1000.0), int(event["dur"] * 1000.0)
        assert (start, start + length) == (event["args"]["start_ns"], event["args"]["end_ns"])
        assert all(isinstance(value, int) for name, value in event["args"].items() if name.endswith("_ns"))
        tracks[event["pid"], event["tid"]].append((start, start + length))
    assert len(tracks) == 2
    for track in tracks.values():
        assert all(before[1] <= after[0] for before, after in pairwise(track))


def test_every_arrow_has_both_ends_and_lies_inside_its_slices(told: tuple[Any, Any]) -> None:
    slices, flows = of(told[1], "X"), defaultdict(list)
    for event in of(told[1], "s", "t", "f"):
        flows[event["id"]].append(event)
    assert len(flows) == 2 * 31  # every layer but the first, two steps
    for arrows in flows.values():
        assert [event["ph"] for event in arrows] == ["s", "t", "f"]
        under = [
            [s for s in slices if s["tid"] == a["tid"] and s["ts"] <= a["ts"] < s["ts"] + s["dur"]] for a in arrows
        ]
        assert [[s["cat"] for s in found] for found in under] == [["select"], ["fetch"], ["attend"]]
        assert len({(s["args"]["layer"], s["args"]["step"]) for (s,) in under}) == 1


def test_counters_are_not_negative_and_integrate_to_the_bytes_of_the_slices(told: tuple[Any, Any]) -> None:
    values = defaultdict(list)
    for event in of(told[1], "C"):
        assert all(value >= 0 for value in event["args"].values())
        if "bytes/s" in event["args"]:
            values[event["name"]].append((event["ts"] * 1e-6, event["args"]["bytes/s"]))
    assert {"HBM", "PCIe h2d", "PCIe d2h"} <= values.keys()
    moved = {name: sum(a[1] * (b[0] - a[0]) for a, b in pairwise(track)) for name, track in values.items()}
    lanes = {1: 0.0, 2: 0.0}
    for event in of(told[1], "X"):
        lanes[event["tid"]] += event["args"].get("link", 0.0)
    device = sum(event["args"].get("hbm", 0.0) for event in of(told[1], "X"))
    assert moved["PCIe h2d"] == pytest.approx(lanes[2], rel=1e-4)
    assert moved["PCIe d2h"] == pytest.approx(lanes[1], rel=5e-3)
    assert moved["HBM"] == pytest.approx(device + lanes[2], rel=1e-4)
    said = told[0]["counters"]["predicted on h200"]
    assert {name: row["total"] for name, row in said.items() if row["unit"] == "bytes/s"} == pytest.approx(moved)


def test_the_metadata_says_what_was_asked_and_what_each_part_means(told: tuple[Any, Any]) -> None:
    other = told[1]["otherData"]
    assert {"arrows", "slices", "HBM", "PCIe h2d", "exposed wait"} <= other["legend"].keys()
    (timeline,) = other["timelines"]
    assert (timeline["pid"], timeline["origin"], timeline["steps_drawn"]) == (2, "predicted", [0, 1])
    assert timeline["provenance"]["profile"] == "h200"
    assert told[0]["asked"]["churn"] == 0.1
    assert timeline["provenance"]["profile_digest"] == told[0]["provenance"]["profile_digest"]


def test_figures_agree_with_predict(told: tuple[Any, Any], capsys: Captured) -> None:
    assert main(["predict", *ASKED[2:], "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    figures = told[0]["timelines"]["predicted on h200"]
    assert figures["exposed_s"] == pytest.approx(predicted["exposed_s"])
    assert figures["transfer_s"] == pytest.approx(predicted["transfer_s"])
    assert figures["step_s"] == pytest.approx(predicted["step_s"], rel=1e-2)  # no gap before the first


def test_the_same_question_writes_the_same_bytes(capsys: Captured, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main([*ASKED, "--out", str(tmp_path / name)]) == 0
    assert "Open" in capsys.readouterr().out
    first, second = ((tmp_path / name / "predicted.json").read_bytes() for name in ("one", "two"))
    assert first == second


def test_a_step_can_be_drawn(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main([*ASKED, "--out", str(tmp_path), "--plot", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert set(files) == {"predicted", "plot"}
    assert Path(files["plot"]).read_bytes().startswith(b"\x89PNG")


def test_a_point_that_does_not_fit_is_refused_with_the_numbers_and_leaves_nothing(
    refusal: Refusal, tmp_path: Path
) -> None:
    said = refusal(*ASKED, "--runtime", "resident", "--context", "1000000", "--out", tmp_path / "none")
    assert "out of memory on profile 'h200'" in said
    assert "of 150.8 GB" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--steps", "0"), "'0' must be an integer between 1 and"),
        (("--profile", "h20"), "did you mean 'h200'?"),
        (("--chrn", "0.2"), "did you mean --churn?"),
        (("--threads", "2"), "--threads describes a run on this machine"),
        (("--text", "a.txt"), "--text describes a run on this machine"),
        (("--selector", "query"), "nearest workable choice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_and_leaves_nothing(
    options: tuple[str, ...], says: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert says in refusal(*ASKED, "--out", tmp_path / "none", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"), [("--churn", "1"), ("--context", "9"), ("--value-bytes", "1"), ("--pcie", "4")]
)
def test_a_knob_of_predictions_is_not_passed_over_in_a_measured_run(
    option: str, value: str, refusal: Refusal
) -> None:
    assert f"{option} describes a prediction; give --predicted" in refusal("timeline", option, value)


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_predicted(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sparda_core.whatif.scenario.Scenario.predict", lambda self: pytest.fail("predicted"))
    assert "file: is no folder" in refusal(*ASKED, "--out", tmp_path / "file" / "traces")


def test_the_python_lines_of_the_documents_write_two_predictions_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    (block,) = re.findall(r"^```python\n((?:(?!^```).)*write_trace(?:(?!^```).)*)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "commands.md", "exec"), {})  # noqa: S102 - our own page
    other = strict(tmp_path / "two.json")["otherData"]["timelines"]
    assert [(one["pid"], one["label"], one["runtime"]) for one in other] == [
        (2, "offload-prefetch", "offload-prefetch"), (4, "offload-sync", "offload-sync"),
    ]  # fmt: skip


def test_a_predicted_timeline_loads_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from sparda_core.cli.main import main; code = main(sys.argv[1:]); "
        "loaded = {'torch', 'numba', 'scipy', 'matplotlib', 'rich.progress'} & set(sys.modules); "
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *ASKED, "--out", str(tmp_path)], capture_output=True, text=True, check=False,
        timeout=300, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
