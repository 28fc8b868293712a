"""Commands that run a model, on a tiny one."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparda_core.cli.generate import Stream
from sparda_core.cli.main import main
from sparda_core.cli.running import combine
from sparda_core.errors import ConfigError
from tests.cli.conftest import Refusal
from tests.cli.files import SPEC, TINY, Files

Captured = pytest.CaptureFixture[str]


def output(capsys: Captured, *argv: str | Path) -> Any:
    """Run a command that must succeed with --json; what it printed."""
    assert main([*map(str, argv), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def generate(capsys: Captured, tiny: Files, *argv: str) -> Any:
    return output(
        capsys, "generate", *tiny.options, *tiny.reading(300), *SPEC, "--max-new-tokens", "6", *argv
    )


def test_generated_tokens_are_the_same_under_every_runtime(tiny: Files, capsys: Captured) -> None:
    made = [
        generate(capsys, tiny, "--selector", "forecast", "--runtime", runtime)
        for runtime in ("resident", "offload-sync", "offload-prefetch")
    ]
    assert len(made[0]["tokens"]) == 6
    assert made[0]["tokens"] == made[1]["tokens"] == made[2]["tokens"]
    assert (made[0]["missed_blocks"], made[0]["moved_bytes"]) == (0, 0)
    assert made[1]["missed_blocks"] == made[2]["missed_blocks"] > 0


def test_generated_text_is_streamed_and_the_figures_stand_apart_from_it(tiny: Files, capsys: Captured) -> None:
    options = (*tiny.options, *tiny.reading(200), *SPEC, "--max-new-tokens", "5")
    assert main(["generate", *options]) == 0
    out, err = capsys.readouterr()
    made = output(capsys, "generate", *options)
    assert out == made["text"] + "\n"
    assert "[forecast x offload-prefetch: 200 + 5 tokens" in err


def test_a_seed_decides_what_is_drawn(tiny: Files, capsys: Captured) -> None:
    draws = [generate(capsys, tiny, "--temperature", "2", "--seed", seed)["tokens"] for seed in ("1", "1", "2")]
    assert draws[0] == draws[1] != draws[2]


def test_a_character_split_over_tokens_is_written_once_it_is_whole() -> None:
    written: list[str] = []
    stream = Stream(lambda ids: bytes(ids).decode(errors="replace"), written.append)
    for byte in "aé!".encode():
        stream.add(byte)
    assert written == ["a", "é", "!"]
    stream.add(0xC3)
    stream.close()
    assert stream.text == "aé!\N{REPLACEMENT CHARACTER}"


def test_a_recording_is_played_back_to_the_same_continuation(tiny: Files, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    told = output(
        capsys, "record", "--out", file, "--steps", "8", *tiny.options, *tiny.reading(300), *SPEC,
        "--selector", "query", "--runtime", "offload-sync",
    )  # fmt: skip
    assert (told["steps"], told["layers"], told["rows"], told["kv_heads"]) == (8, TINY.layers, 1, TINY.kv_heads)
    from sparda_core.selectors.recording import load

    recording = load(file)
    assert recording.positions[:, 0].tolist() == list(range(292, 300))
    assert len(recording.facts) == 8
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]
    replay = ("--selector", "replay", "--selector-option", f"path={file}")
    again = tmp_path / "again.npz"
    output(
        capsys, "record", "--out", again, "--steps", "8", *tiny.options, *tiny.reading(300), *SPEC, *replay,
        "--runtime", "offload-prefetch",
    )  # fmt: skip
    assert (load(again).selections == recording.selections).all()
    traces = ("--out", str(tmp_path / "traces"), "--steps", "2")
    output(capsys, "timeline", *traces, *tiny.options, *tiny.reading(300), *SPEC, *replay)


def test_a_recording_has_nothing_to_say_of_positions_that_it_does_not_hold(
    tiny: Files, capsys: Captured, refusal: Refusal, tmp_path: Path
) -> None:
    file = tmp_path / "run.npz"
    options = (*tiny.options, *tiny.reading(200), *SPEC)
    output(capsys, "record", "--out", file, "--steps", "2", *options, "--selector", "window")
    said = refusal(
        "generate", "A prompt of its own", *tiny.options, *SPEC, "--selector", "replay", "--selector-option",
        f"path={file}",
    )  # fmt: skip
    assert "position" in said


def test_a_timeline_leaves_three_traces_with_the_same_tracks(tiny: Files, capsys: Captured, tmp_path: Path) -> None:
    told = output(
        capsys, "timeline", "--out", tmp_path / "t", "--steps", "3", "--link-gb-s", "0.05", *tiny.options,
        *tiny.reading(300), *SPEC,
    )  # fmt: skip
    files = sorted(entry.name for entry in (tmp_path / "t").iterdir())
    assert files == ["both.json", "measured.json", "predicted.json"]
    both = json.loads((tmp_path / "t" / "both.json").read_text())["traceEvents"]
    tracks = [
        [e["args"]["name"] for e in both if e["name"] == "thread_name" and e["pid"] == process] for process in (1, 2)
    ]
    assert tracks[0] == tracks[1]
    slices = [{e["name"] for e in both if e["ph"] == "X" and e["pid"] == process} for process in (1, 2)]
    assert slices[0] == slices[1]
    alone = {name: json.loads((tmp_path / "t" / f"{name}.json").read_text()) for name in ("measured", "predicted")}
    assert [{e["pid"] for e in one["traceEvents"]} for one in alone.values()] == [{1}, {2}]
    assert "PCIe h2d" in alone["predicted"]["otherData"]["legend"]  # of the emulated link
    assert alone["measured"]["otherData"]["timelines"][0]["machine"]["cores"] >= 1
    assert all(figures["step_s"] > 0 for figures in told["timelines"].values())
    assert len(told["timelines"]) == 2


def test_a_calibrated_profile_predicts_this_machine(tiny: Files, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    told = output(
        capsys, "calibrate", "--out", file, "--contexts", "150", "300", "--steps", "4", "--selectors", "forecast",
        "query", *tiny.options, *tiny.reading(400), *SPEC,
    )  # fmt: skip
    kinds = {"attend", "mlp", "project", "diff", "fetch", "forecast:score", "query:score", "query:select"}
    assert {f"decode/{kind}" for kind in kinds} <= told["costs"].keys()
    assert all(cost["slowdown"] >= 1 for cost in told["costs"].values())
    assert told["digest"] == output(capsys, "profile", "show", file)[0]["digest"]
    assert main(["profile", "lint", str(file)]) == 0
    capsys.readouterr()
    got = output(
        capsys, "predict", "--profile", file, "--shape", "smollm2-135m", "--budget", "16", "--local", "3",
        "--batch", "1", "--context", "2000",
    )  # fmt: skip
    assert got["plan"]["engine"] == "thread"
    assert got["step_s"] > 0


def run_options(tiny: Files, command: str, tmp_path: Path) -> list[str]:
    options = {
        "generate": ["--max-new-tokens", "4"],
        "record": ["--steps", "4", "--out", str(tmp_path / "r.npz")],
        "timeline": ["--steps", "2", "--out", str(tmp_path / "traces")],
        "calibrate": ["--contexts", "64", "128", "--out", str(tmp_path / "p.toml")],
    }
    return [command, *tiny.options, *SPEC, *options[command]]


RUNNING = ("generate", "record", "timeline", "calibrate")


@pytest.fixture(params=RUNNING)
def command(request: pytest.FixtureRequest, tiny: Files, tmp_path: Path) -> list[str]:
    return run_options(tiny, request.param, tmp_path)


def test_without_a_text_a_part_of_pythons_documentation_is_read(
    tiny: Files, capsys: Captured, tmp_path: Path
) -> None:
    told = output(capsys, "record", "--out", tmp_path / "r.npz", "--steps", "2", *tiny.options, *SPEC)
    assert told["text"].startswith("help:")


def test_an_empty_text_is_refused(command: list[str], refusal: Refusal, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert "empty" in refusal(*command, "--text", empty)


def test_a_text_that_is_not_there_is_refused(command: list[str], refusal: Refusal, tmp_path: Path) -> None:
    assert "absent.txt" in refusal(*command, "--text", tmp_path / "absent.txt")


def test_a_text_that_is_no_text_is_refused(command: list[str], refusal: Refusal, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG\xff\xfe" * 50)
    assert "UTF-8" in refusal(*command, "--text", file)


def test_a_text_longer_than_the_context_is_refused_unless_it_is_cut(
    command: list[str], refusal: Refusal, tiny: Files
) -> None:
    said = refusal(*command, "--text", tiny.text)
    assert "context" in said
    assert "max" in said
    assert "tokens" in said


def test_missing_forecast_weights_say_how_to_get_them(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    for name in ("generate", "record", "timeline"):
        command = run_options(tiny, name, tmp_path)
        at = command.index("--forecast")
        del command[at : at + 2]
        said = refusal(*command, *tiny.reading(200))
        assert "sparda train" in said
        assert "query" in said


def test_truncated_weights_are_refused(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny.model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in refusal("generate", "Hello", "--model", broken)


def test_a_model_that_is_not_there_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    assert "absent" in refusal("generate", "Hello", "--model", tmp_path / "absent.gguf")
    assert "did you mean 'smollm2'?" in refusal("generate", "Hello", "--model", "smolm2")


def test_a_gpu_that_is_not_there_is_refused(
    tiny: Files, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = refusal("generate", "Hello", *tiny.options, "--device", "cuda")
    assert "device='cuda' needs a GPU" in said
    assert "use 'cpu'" in said


@pytest.mark.parametrize("given", [{"threads": 2}, {"threads": None, "link_bytes_per_s": 1e9}])
def test_options_of_a_cpu_are_refused_on_a_gpu(given: dict[str, float | None]) -> None:
    where = SimpleNamespace(decoder=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    args = Namespace(threads=given.pop("threads"))
    with pytest.raises(ConfigError, match=r"--threads and --link-gb-s are of a CPU"):
        combine(args, where, **given)  # type: ignore[arg-type]


def test_a_model_without_a_tokenizer_is_refused(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.mkdir()
    for name in ("config.json", "model.safetensors"):
        (mute / name).write_bytes((tiny.model / name).read_bytes())
    assert "tokenizer.json" in refusal("generate", "Hello", "--model", mute, "--selector", "query")


@pytest.mark.parametrize("option", ["--selector", "--runtime"])
def test_an_unknown_method_answers_with_the_nearest(option: str, tiny: Files, refusal: Refusal) -> None:
    near = {"--selector": ("qury", "query"), "--runtime": ("ofload-sync", "offload-sync")}[option]
    assert f"did you mean {near[1]!r}?" in refusal("generate", "Hello", *tiny.options, option, near[0])


def test_a_pair_that_does_not_fit_names_the_nearest_that_does(tiny: Files, refusal: Refusal) -> None:
    said = refusal("generate", "Hello", *tiny.options, "--selector", "query", "--runtime", "offload-prefetch")
    assert "nearest workable choice" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budget", "2"), "budget=2 must be >= 3"),
        (("--slots", "4"), "slots=4 must be >= budget=6"),
        (("--policy", "best"), "policy='best' is unknown; known: last-selection, lru"),
        (("--resident-layers", "9"), "resident_layers=9 must be between"),
        (("--stride", "7"), "must be a multiple of stride=7"),
        (("--selector-option", "sed=3"), "sed"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_numbers_that_cannot_work_name_the_bound(
    options: tuple[str, ...], says: str, tiny: Files, refusal: Refusal
) -> None:
    assert says in refusal("generate", "Hello", *tiny.options, *SPEC, *options)


def test_a_prompt_and_a_text_are_one_too_many(tiny: Files, refusal: Refusal) -> None:
    assert "one of the two" in refusal("generate", "Hello", "--text", tiny.text)
    assert "one of the two" in refusal("generate")


def test_a_result_that_cannot_be_written_is_refused_before_any_work(
    tiny: Files, refusal: Refusal, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    assert str(absent) in refusal("record", *tiny.options, "--out", absent / "r.npz")
    assert str(absent) in refusal("calibrate", *tiny.options, "--out", absent / "p.toml")
    assert str(absent) in refusal("train", *tiny.options[:2], "--out", absent / "f.safetensors")
    file = tmp_path / "file"
    file.write_text("")
    assert str(file) in refusal("timeline", *tiny.options, "--out", file / "traces")
    assert not absent.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "Permission denied" in refusal("record", *tiny.options, "--out", tmp_path / "r.npz")


def test_no_space_for_a_result_leaves_nothing(
    tiny: Files, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    said = refusal("record", *tiny.options, *tiny.reading(200), *SPEC, "--steps", "3", "--out", tmp_path / "r.npz")
    assert "No space left on device" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "name", "ending"),
    [("record", "r.zip", ".npz"), ("calibrate", "p.json", ".toml"), ("train", "f.pt", ".safetensors")],
)
def test_a_file_with_the_wrong_ending_is_refused(
    command: str, name: str, ending: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert f"must end in {ending}" in refusal(command, "--out", tmp_path / name)


def test_a_device_that_is_not_supported_is_refused(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is calibrated there")
    assert "finds no CUDA device" in refusal("calibrate", "--device", "cuda", "--out", tmp_path / "p.toml")
