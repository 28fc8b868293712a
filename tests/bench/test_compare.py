"""The phases of a comparison on a tiny model, and the figures that must hold on any machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.bench.compare import compare_model
from sparda_core.bench.config import CompareConfig
from sparda_core.bench.paired import LEAST_EXPOSED
from sparda_core.bench.plot_timelines import plot_timelines
from sparda_core.bench.plots import plot_comparison, require_matplotlib
from sparda_core.bench.report import CompareReport
from sparda_core.bench.timing import two_digits
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.models.tiny import tiny_model
from sparda_core.shapes import BlockSpec, ModelShape

pytest.importorskip("matplotlib")

SHAPE = ModelShape(
    name="tiny", layers=3, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=97, context=2048,
    tied_embeddings=True,
)  # fmt: skip
PNG = b"\x89PNG\r\n"


class Bytes:
    """Ids from 1 to 96, one a character."""

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) % 96 for letter in text]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CompareReport:
    config = CompareConfig(
        spec=BlockSpec(block=8, window=8, stride=4, sink=1, local=1, budget=6), max_tokens=300, windows=2, steps=12,
        task_tokens=256, timed_steps=8, rounds=2, warmup=2, threads=1, batch=2, link_gb_s=0.05,
        out=tmp_path_factory.mktemp("compare") / "out",
    )  # fmt: skip
    seen: list[tuple[str, int, int]] = []
    model = tiny_model(SHAPE, dtype=torch.float32, forecast=False).decoder
    made = compare_model(config, model, Bytes(), progress=lambda *event: seen.append(event))
    assert all(0 <= done <= total for _, done, total in seen)
    return made


def rows(report: CompareReport, label: str, **wanted: Any) -> list[dict[str, Any]]:
    return [r for r in report.timing if r["label"] == label and all(r[k] == v for k, v in wanted.items())]


def test_a_model_without_forecast_is_compared_without_it_and_the_report_says_so(report: CompareReport) -> None:
    assert "forecast" not in {row["label"] for row in report.quality}
    assert any("no Forecast weights" in note for note in report.notes)
    assert report.timelines["label"] == "infinigen"


def test_a_replay_answers_exactly_as_what_it_replays(report: CompareReport) -> None:
    quality = {row["label"]: row for row in report.quality}
    for name in ("tokens", "agreement", "kl", "perplexity", "recall_query", "recall_oracle", "churn"):
        assert quality["replay"][name] == pytest.approx(quality["query"][name], rel=1e-6, abs=1e-9), name
    assert quality["query"]["recall_query"] == quality["oracle"]["recall_oracle"] == 1
    assert quality["dense"]["kl"] == pytest.approx(0, abs=1e-6)
    moved = {rows(report, label, runtime="offload-sync")[0]["misses"] for label in ("query", "replay")}
    assert len(moved) == 2  # replay leaves its first layer on the device, query none


def test_both_offloading_runtimes_move_the_same_blocks_over_both_links(report: CompareReport) -> None:
    for label in ("infinigen", "random", "window"):
        offloaded = [r for r in rows(report, label) if r["link"] is not None]
        assert len({r["selected"] for r in offloaded}) == 1
        assert len({r["runtime"] for r in offloaded}) == 2
    assert {r["misses"] > 0 for r in rows(report, "infinigen", runtime="offload-sync")} == {True}
    assert {r["link"] for r in rows(report, "infinigen")} == {None, "emulated", "unlimited"}


def test_each_hidden_share_follows_from_its_own_rows(report: CompareReport) -> None:
    assert {(row["label"], row["link"]) for row in report.hiding} >= {
        ("infinigen", "emulated"), ("infinigen", "unlimited"), ("random", "emulated"),
    }  # fmt: skip
    for row in report.hiding:
        resident, sync, early = (row[f"{name}_s"] for name in ("resident", "offload-sync", "offload-prefetch"))
        want = (sync - early) / (sync - resident) if sync - resident >= LEAST_EXPOSED * resident else None
        assert row["hidden_share"] == (want if want is None else pytest.approx(want))


def test_every_file_is_there_and_the_parts_are_gone(report: CompareReport) -> None:
    for name in ("comparison", "timeline"):
        assert Path(report.files[name]).read_bytes().startswith(PNG)
    for name in ("trace_measured", "trace_predicted"):
        assert json.loads(Path(report.files[name]).read_text())["traceEvents"]
    folder = Path(report.files["report"]).parent
    assert {path.name for path in folder.iterdir()} == {Path(path).name for path in report.files.values()}


def test_a_report_survives_the_way_to_disk_and_can_be_drawn_again(report: CompareReport, tmp_path: Path) -> None:
    again = CompareReport.load(Path(report.files["report"]))
    assert again.quality == report.quality
    for draw in (plot_comparison, plot_timelines):
        draw(again, tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes().startswith(PNG)
    assert again.provenance["threads"] == 1
    assert again.provenance["packages"]["torch"]
    assert len(again.text["sha256"]) == 64


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99}', '{"format": 1}'])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(RecordingError, match=r"r\.json"):
        CompareReport.load(tmp_path / "r.json")


def test_a_chosen_link_looks_chosen() -> None:
    assert [two_digits(x) for x in (123456789.0, 0.0987, 5.55e9)] == [120000000.0, 0.099, 5.6e9]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install sparda\[plot\]"):
        require_matplotlib()
