"""The main job, in its smallest form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparda_core.cli.main import main
from tests.cli.conftest import Refusal
from tests.cli.files import SPEC, Files

Captured = pytest.CaptureFixture[str]

SMALL = (
    *("--windows", "2", "--quality-steps", "8", "--timed-steps", "8", "--rounds", "2", "--task-tokens", "300"),
    *("--link-gb-s", "0.05"),
)


def compare(tiny: Files, out: Path, *options: str) -> list[str]:
    return ["compare", *tiny.options, *tiny.reading(400), *SPEC, *SMALL, "--out", str(out), *options]


@pytest.mark.slow
def test_a_comparison_prints_every_table_and_leaves_every_file(tiny: Files, capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(compare(tiny, tmp_path / "out")) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    for words in (
        "text.txt, 400 of", "Quality:", "Blocks that moved", "Step time on this machine", "What prefetching hides",
        "Predicted, not measured: minicpm4.1-8b", "50 MB/s", "report.json", "Left out: query + offload-prefetch",
        "tasks, one of each: passkey", "recall was judged",
    ):  # fmt: skip
        assert words in out
    for label in ("dense", "query", "forecast", "infinigen", "window", "random", "oracle", "replay"):
        assert label in out
    hidden = out.partition("What prefetching hides")[2].partition("Predicted, not measured")[0]
    assert "forecast" in hidden
    assert "window" not in hidden, "a window moves nothing, so nothing of it can be hidden"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for file in report["files"].values():
        assert Path(file).stat().st_size > 0
    assert not (tmp_path / "out" / "parts").exists()


@pytest.mark.slow
def test_an_interrupted_comparison_keeps_its_parts_and_goes_on_from_them(
    tiny: Files, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from sparda_core.bench.judging import judge as real

    judged: list[str] = []

    def stopped(bench: object, contender: object, *rest: object) -> object:
        label = getattr(contender, "label", "")
        if label == "infinigen" and "infinigen" not in judged:
            judged.append(label)
            raise KeyboardInterrupt
        judged.append(label)
        return real(bench, contender, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("sparda_core.bench.compare.judge", stopped)
    out = tmp_path / "out"
    assert main(compare(tiny, out)) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert "sparda: interrupted; 3 finished parts are kept in" in said.err
    assert "Traceback" not in said.err
    assert main(compare(tiny, out, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in report["quality"]][:3] == ["dense", "query", "forecast"]
    assert [judged.count(label) for label in ("dense", "query", "forecast", "infinigen")] == [1, 1, 1, 2]


def test_a_comparison_refuses_what_it_cannot_do_and_leaves_nothing(
    tiny: Files, refusal: Refusal, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for options, says in (
        (("--budget", "2"), "budget=2 must be >= 3"),
        (("--slots", "5"), "slots=5 must be >= budget=6"),
        (("--policy", "best"), "known: last-selection, lru"),
        (("--device", "tpu"), "device='tpu' is not supported"),
        (("--rounds", "3"), "must be a multiple of rounds=3"),
        (("--model", str(tmp_path / "absent")), "absent"),
        (("--text", str(tmp_path / "absent.txt")), "absent.txt"),
        (("--max-tokens", "10"), "the measurements need"),
        (("--max-tokens", "5000"), "max_tokens=5000 must be <= 2048"),
    ):
        assert says in refusal(*compare(tiny, out, *options))
        assert not out.exists()


def test_a_comparison_refuses_a_folder_that_it_cannot_make(tiny: Files, refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in refusal(*compare(tiny, tmp_path / "file" / "out"))
