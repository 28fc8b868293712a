"""From stored cells to a report: what is predicted, part by part, and what lies in the folder afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import Folder, Run, write_run
from sparda_core.bench.validate.record import Measured, Record
from sparda_core.bench.verdict import run
from sparda_core.bench.verdict.hidden import hidden_table
from sparda_core.bench.verdict.judged import HOST, Part, read_verdict
from sparda_core.bench.verdict.make import judge_record, ready_of
from sparda_core.bench.verdict.parts import BANDWIDTH, COPY_ALONE, EXPOSED, FARTHEST, SLOWDOWN
from sparda_core.cli.main import main
from sparda_core.errors import ConfigError
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.step_models import FULL, STEP_MODELS
from sparda_core.spans import Timeline
from tests.bench.verdict.cells import judged, verdict

ROOT = Path(__file__).parents[3]
DECODE = ROOT / "benchmarks" / "results" / "2026-11-30-decode-h200.json"
Captured = pytest.CaptureFixture[str]
KEYS = (
    "forecast prefetch b16 128K churn 10% last-selection x1", "forecast sync b16 128K churn 10% last-selection x1",
    "forecast resident b16 128K", "forecast prefetch b8 128K churn 10% last-selection x1 copy-engine",
    "forecast prefetch b8 128K churn 10% last-selection x1 paper copies eager",
)  # fmt: skip


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of the measured ones."""
    whole = json.loads(DECODE.read_text())
    path = tmp_path_factory.mktemp("decode") / "decode.json"
    path.write_text(json.dumps({**whole, "rows": [row for row in whole["rows"] if row["key"] in KEYS]}))
    return path


def record(runtime: str, *, slower: float = 1.0, folder: Folder | None = None) -> Record:
    """A record whose measurement is a simulation of 16 rows of 128K tokens, every span `slower` times as long."""
    cell = ValidationCell(selector="forecast", runtime=runtime, batch=16, context=1 << 17)
    misses = [[0] + [300] * 31] if cell.offloads else [[0] * 32]
    facts = CompactFacts(
        layers=32, batch=16, kv_heads=2, budget=96, slots=96 if cell.offloads else 0, lengths=[131073], selected=[96],
        opened=[0], misses=misses,
    )  # fmt: skip
    blank = Measured(rounds_s=[[1.0]], facts=facts, confirmed=1, block_bytes=32768.0)
    made = Record(cell=cell, tier="interpolated", stratum="balanced", measured=blank)
    ready = ready_of(made, "h200")
    simulated = ready.run(ready.replay)
    taken = simulated.step_ns[0] / 1e9 * slower
    name = None
    if folder is not None:
        spans = [
            attrs.evolve(s, start_ns=round(s.start_ns * slower), end_ns=round(s.end_ns * slower), args={})
            for s in simulated.timeline.spans
        ]
        name = folder.write_timeline(cell, Timeline(label="measured", spans=spans))
    measured = attrs.evolve(blank, rounds_s=[[taken], [taken * 1.02]], timeline=name)
    made = attrs.evolve(made, measured=measured)
    if folder is not None:
        folder.write(made)
    return made


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder of two cells that took a tenth longer than is predicted."""
    for runtime in ("offload-prefetch", "offload-sync"):
        record(runtime, slower=1.1, folder=Folder(tmp_path / "cells"))
    return tmp_path / "cells"


def test_every_model_speaks_of_a_cell_and_the_full_one_is_what_is_judged() -> None:
    got = judge_record(record("offload-prefetch"), "h200")
    assert got.models.keys() == STEP_MODELS.keys()
    assert got.drawn_s == got.models[FULL] == got.predicted_s
    # The measurement was a simulation of these very facts: a replay finds it again, the median of both rounds aside.
    assert got.replay_error == pytest.approx(0.01)
    assert got.repeatability == pytest.approx(0.02)
    assert (got.overlaps, got.copy_ctas, got.moved_bytes) == (True, 2, 300 * 31 * 32768)


def test_a_cell_that_cannot_be_predicted_says_why_and_is_judged_no_further() -> None:
    made = record("offload-prefetch")
    strange = attrs.evolve(made, cell=attrs.evolve(made.cell, ctas=40))
    got = judge_record(strange, "h200")
    assert got.problem is not None
    assert "outside the calibrated domain" in got.problem
    assert (got.error(), got.models) == (None, {})


def test_parts_of_timelines_are_right_where_the_machine_is_and_off_by_what_it_is_off(stored: Path) -> None:
    source = run.read_source(stored)
    assert source.parts_of is not None
    found = run.make_verdict(source, load_profile("h200"), asked="h200")
    by_runtime = {cell.of.runtime: {part.name: part for part in cell.parts} for cell in found.cells}
    early = by_runtime["offload-prefetch"]
    assert early[BANDWIDTH].error == pytest.approx(0.1, abs=2e-3)
    assert early["mlp"].error == pytest.approx(1 / 1.1 - 1, abs=2e-3)
    assert early[EXPOSED].measured == pytest.approx(1.1 * early[EXPOSED].predicted, rel=2e-3)
    # Beside the synchronous cell, which was as slow: the slowdown that copies cause is the same.
    assert early[SLOWDOWN].measured == pytest.approx(early[SLOWDOWN].predicted, abs=0.02)
    assert early[SLOWDOWN].predicted > 1.03
    assert SLOWDOWN not in by_runtime["offload-sync"]
    assert FARTHEST not in early, "of which layer missed how much nothing was kept"


def with_layers(stored: Path, misses: list[list[int]]) -> tuple[dict[str, Part], str | None]:
    """Parts of the synchronous cell, whose traced step is told to have missed this, and why there are none."""
    (made,) = [one for one in run.read_source(stored).run.records if one.cell.runtime == "offload-sync"]
    assert made.measured is not None
    facts = attrs.evolve(made.measured.facts, misses=misses, **{
        name: getattr(made.measured.facts, name) * len(misses) for name in ("lengths", "selected", "opened")
    })  # fmt: skip
    Folder(stored).write(attrs.evolve(made, measured=attrs.evolve(made.measured, timeline_facts=facts)))
    found = run.make_verdict(run.read_source(stored), load_profile("h200"), asked="h200")
    (cell,) = [one for one in found.cells if one.of.runtime == "offload-sync"]
    return {part.name: part for part in cell.parts}, cell.problem


def test_layers_are_judged_one_by_one_where_the_facts_of_the_traced_steps_are_kept(stored: Path) -> None:
    """The stored step missed 300 in every layer; facts that put 100 more into one layer make that one wrong."""
    same, _ = with_layers(stored, [[0] + [300] * 31])
    assert same[FARTHEST].measured == pytest.approx(1.1 * same[FARTHEST].predicted, rel=2e-3)
    other, _ = with_layers(stored, [[0] + [300] * 9 + [400] + [300] * 21])
    assert other[FARTHEST].predicted > 1.1 * other[FARTHEST].measured
    assert other[EXPOSED].predicted < other[EXPOSED].measured
    none, why = with_layers(stored, [[0] + [300] * 31] * 2)
    assert none == {}
    assert "has 1 steps, its facts are of 2" in str(why)


def test_rows_of_the_decode_bench_tell_parts_that_were_timed_alone(decode: Path) -> None:
    source = run.read_source(decode)
    found = run.make_verdict(source, load_profile("h200"), asked="h200")
    cells = {cell.key: cell for cell in found.cells}
    early = cells[KEYS[0]]
    assert abs(early.error() or 1.0) < 0.1
    parts = {part.name: part for part in early.parts}
    assert parts[COPY_ALONE].measured == pytest.approx(312082432 / 0.006210288)
    assert {"mlp, alone", "project, alone", "select and diff, alone", "attend, alone"} <= parts.keys()
    assert all(abs(part.error or 0) < 0.5 for name, part in parts.items() if name in ("mlp, alone", COPY_ALONE))
    assert {cell.stratum for cell in found.cells if cell.of.engine != "uva" or cell.of.launches == "eager"} == {HOST}


def test_cells_come_in_the_order_of_their_document_and_a_cpu_s_need_its_profile(stored: Path, tmp_path: Path) -> None:
    records = run.read_source(stored).run.records
    write_run(stored / "validation.json", Run(records=records[::-1], provenance={"date": "2026-11-30"}))
    again = run.read_source(stored).run
    assert [one.cell for one in again.records] == [one.cell for one in records[::-1]]
    assert again.provenance == {"date": "2026-11-30"}
    cpu = ROOT / "tests" / "bench" / "validate" / "data" / "tiny-cpu.json"
    source = run.read_source(cpu)
    assert source.device == "cpu"
    with pytest.raises(ConfigError, match=r"holds cells of a CPU and no cpu-profile\.toml beside them"):
        run.profile_of(source, cpu, None)
    beside = tmp_path / "cpu-profile.toml"
    beside.write_bytes(cpu.with_name("tiny-cpu-profile.toml").read_bytes())
    document = tmp_path / "validation.json"
    document.write_bytes(cpu.read_bytes())
    assert run.profile_of(source, tmp_path, None) == run.profile_of(source, document, None) == load_profile(beside)


def test_hidden_shares_are_of_three_cells_under_one_load() -> None:
    pool = {"batch": 8, "context": 1 << 16}
    cells = [
        judged(measured=0.012, error=0.0, cell={"runtime": "offload-sync", **pool}),
        judged(measured=0.009, error=0.1, cell=pool),
        judged(measured=0.008, error=0.0, cell={"runtime": "resident", **pool}),
        judged(measured=0.009, error=0.1, cell={**pool, "batch": 4}),
    ]  # fmt: skip
    (line,) = hidden_table(verdict(*cells)).lines
    # (12 - 9) / (12 - 8), and (12 - 9 / 1.1) / (12 - 8) as predicted.
    assert line[1:] == ("75.0 %", f"{100 * (12 - 9 / 1.1) / 4:.1f} %", "1.33 times", "1.47 times")


def test_a_report_is_tables_figures_and_traces(stored: Path, capsys: Captured) -> None:
    assert main(["validate", "--report", str(stored)]) == 0
    out = capsys.readouterr().out
    assert "**" not in out
    folder = stored / "report"
    for told in ("Absolute errors", "Where the full model wins", "Error by component", "Bars", str(folder)):
        assert told in out
    assert len(read_verdict(folder / "report.json").cells) == 2
    assert len(list(csv.DictReader((folder / "cells.csv").read_text().splitlines()))) == 2
    for name in ("scatter.png", "models.png", "timeline.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG"), name
    traces = [json.loads(path.read_text()) for path in (folder / "traces").glob("*.json")]
    assert len(traces) == 2
    for trace in traces:
        named = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        assert [name.split()[0] for name in named] == ["measured", "predicted"]
        threads = [(e["pid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "thread_name"]
        tracks: dict[int, list[str]] = {}
        for process, thread in threads:
            tracks.setdefault(process, []).append(thread)
        one, other = tracks.values()
        assert one == other


def test_a_report_of_rows_as_json_has_the_same_tables(decode: Path, tmp_path: Path, capsys: Captured) -> None:
    where = ["--out", str(tmp_path / "there"), "--no-figures", "--json", "--csv", str(tmp_path / "cells.csv")]
    assert main(["validate", "--report", str(decode), *where]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(told["cells"]) == len(KEYS)
    assert {line["against"] for line in told["wins"]} == STEP_MODELS.keys() - {FULL}
    assert not list((tmp_path / "there").glob("*.png"))
    assert (tmp_path / "cells.csv").read_text() == (tmp_path / "there" / "cells.csv").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--report", "/nowhere/at/all"], "--report /nowhere/at/all does not exist"),
        (["--report", str(ROOT), "--published"], "give one of them"),
        (["--report", str(ROOT / "README.md")], "is no JSON of measured cells"),
        (["--report", str(ROOT / "docs")], "holds no record of a validation"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(given: list[str], says: str, capsys: Captured) -> None:
    assert main(["validate", *given, "--no-figures"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
