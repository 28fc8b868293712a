from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparda_core.cli.main import main
from sparda_core.whatif.backends import Pool, serial
from sparda_core.whatif.scenario import Scenario
from tests.cli.conftest import Refusal
from tests.whatif.fakes import usual

Captured = pytest.CaptureFixture[str]

SMALL = ("--shape", "smollm2-135m", "--context", "4096", "--budget", "16", "--local", "3")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "predict", usual)


def whatif(capsys: Captured, *options: str | Path) -> Any:
    assert main(["whatif", *map(str, options), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("by_formula")
def test_the_document_holds_rows_best_frontier_speedups_and_crossovers(capsys: Captured) -> None:
    got = whatif(
        capsys, "--grid", "batch=4,16,64", "link-gb-s=10,40", "--between", "runtime=offload-sync,offload-prefetch",
        "--crossover", "batch", "--budget", "128",
    )  # fmt: skip
    assert len(got["rows"]) == 12
    assert got["base"]["budget"] == 128
    assert got["counts"] == {"fits": 8, "out-of-memory": 4, "impossible": 0}
    assert got["best"][0]["given"] == {"batch": 4, "link_gb_s": 10.0}
    assert got["best"][0]["best"]["labels"]["runtime"] == "offload-prefetch"
    assert got["best"][-1]["best"] is None
    assert [pair["speedup"] for pair in got["speedups"]][:4] == [pytest.approx(1.5)] * 4
    (one, _) = got["crossovers"]
    assert one["given"] == {"link_gb_s": 10.0}
    assert [(c["high"], c["after"]) for c in one["crossovers"]["crossings"]] == [(33, "neither")]
    assert got["frontiers"][0]["rows"][0]["labels"]["batch"] == 4


@pytest.mark.usefixtures("by_formula")
def test_tables_say_what_wins_where_and_that_nothing_was_measured(capsys: Captured) -> None:
    options = ("--grid", "batch=4,64", "budget=96,97", "runtime=offload-sync,offload-prefetch")
    assert main(["whatif", *options, "--between", "runtime=offload-sync,offload-prefetch", "--crossover",
                 "link_gb_s=10:40"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    for words in (
        "Fastest choice in each cell", "host memory: needs 200 B, has 100 B", "Frontier", "How many times faster",
        "Where offload-prefetch beats offload-sync", "none in range: offload-prefetch from 10 to 40",
        "budget=97 is not liked here", "Predicted, not measured. 8 points: 2 fit, 2 out of memory, 4 impossible",
    ):  # fmt: skip
        assert words in out


@pytest.mark.usefixtures("by_formula")
def test_no_more_processes_are_started_than_there_are_points(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    @contextlib.contextmanager
    def counted(backend: str, *, jobs: int, address: str | None) -> Iterator[Pool]:
        asked.append(jobs)
        yield serial

    monkeypatch.setattr("sparda_core.cli.whatif.open_pool", counted)
    for points in ("4", "4,8,16"):
        assert main(["whatif", "--grid", f"batch={points}", "--jobs", "4096"]) == 0
    assert asked == [1, 3]


@pytest.mark.usefixtures("by_formula")
def test_a_long_table_is_cut_and_says_where_the_rest_is(capsys: Captured) -> None:
    assert main(["whatif", "--grid", "batch=1:60:60"]) == 0
    assert "20 more lines: see --out, --csv or --json." in capsys.readouterr().out


@pytest.mark.usefixtures("by_formula")
def test_a_folder_keeps_rows_study_and_figures_and_csv_says_the_same(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, table = tmp_path / "out", tmp_path / "all.csv"
    options = ("--grid", "batch=4,8,16", "link_gb_s=10,20", "--at", "batch=8", "--out", out, "--csv", table)
    got = whatif(capsys, *options, "--plot", "link_gb_s", "link_gb_s,batch", "--value", "step_ms")
    assert got["figures"] == [
        "step_ms-over-link_gb_s.png", "step_ms-over-link_gb_s.svg", "step_ms-over-link_gb_s-and-batch.png",
        "step_ms-over-link_gb_s-and-batch.svg",
    ]  # fmt: skip
    assert {path.name for path in out.iterdir()} == {*got["figures"], "rows.csv", "rows.jsonl", "study.json"}
    assert table.read_bytes() == (out / "rows.csv").read_bytes()
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [float(row["tokens_per_s"]) for row in rows] == [row["tokens_per_s"] for row in got["rows"]]
    held = json.loads((out / "study.json").read_text())
    assert {key: value for key, value in got.items() if key != "rows"} == held
    again = whatif(capsys, *options, "--resume")
    assert again["rows"] == got["rows"]


def test_every_knob_of_a_scenario_is_an_option_and_an_axis(capsys: Captured) -> None:
    got = whatif(capsys, *SMALL, "--batch", "2", "--engine", "copy-engine", "--grid", "churn=0.01,0.3", "ctas=2,16")
    steps = [row["step_s"] for row in got["rows"]]
    assert got["base"]["engine"] == "copy-engine"
    assert steps[0] < steps[2]
    assert steps[0] == steps[1]  # a copy engine has no thread blocks


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "there is nothing to vary; give --grid"),
        (("--grid", "batch="), "has no values"),
        (("--grid", "bach=1,2"), "did you mean 'batch'?"),
        (("--grid", "batch=1", "batch=2"), "batch is an axis already"),
        (("--grid", "batch=1:1000:1000", "context=1:10000:10000"), "10,000,000 points"),
        (("--grid", "churn=nan"), "churn=nan must be"),
        (("--grid", "batch=1,2", "--budget", "97"), "budget=97 is not liked here"),
        (("--grid", "batch=1", "--crossover", "batch"), "needs two choices"),
        (("--between", "ctas=2,4", "--crossover", "batch"), "needs a range"),
        (("--between", "ctas=2,4", "--crossover", "batch=8:4"), "LOW < HIGH"),
        (("--between", "ctas=2,4", "--crossover", "policy=a:b"), "is not a number"),
        (("--between", "ctas=2,4", "--crossover", "ctas=2:4"), "vary another knob"),
        (("--grid", "batch=1,2", "--resume"), "--resume needs a folder"),
        (("--grid", "batch=1,2", "--plot", "batch"), "--plot needs a folder"),
        (("--grid", "batch=1,2", "--plot", "a,b,c", "--out", "x"), "must be one axis (lines) or two"),
        (("--grid", "batch=1,2", "--plot", "runtime", "--out", "x"), "is no axis of this grid; it has: batch"),
        (("--grid", "batch=1,2", "--value", "tokens", "--plot", "batch", "--out", "x"), "did you mean 'tokens_per_s'"),
        (("--grid", "batch=1,2", "--at", "batch=3"), "is not on the grid, which has 1, 2"),
        (("--grid", "batch=1,2", "--at", "batch"), "must be KNOB=VALUE"),
        (("--grid", "batch=1,2", "--choose", "policy"), "'policy' is no axis"),
        (("--grid", "batch=1,2", "--backend", "daks"), "did you mean 'dask'?"),
        (("--grid", "batch=1,2", "--jobs", "0"), "'0' must be an integer"),
        (("--grid", "batch=1,2", "--lead-by", "nan"), "'nan' must be a number"),
        (("--grid", "batch=1,2", "--csv", "absent/rows.csv"), "absent"),
        (("--grid", "batch=1,2", "--most-points", "1"), "2 points (batch 2), but 1 are allowed"),
        (("--study", "lookahed"), "did you mean 'lookahead'?"),
        (("--study", "lookahead", "--plot", "batch"), "--plot means nothing to --study lookahead"),
        (("--study", "lookahead", "--resume"), "--resume needs a folder"),
        (("--study", "lookahead", "--grid", "runtime=resident"), "the study lookahead varies batch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_written(
    options: tuple[str, ...], says: str, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refusal("whatif", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("by_formula")
def test_a_folder_that_is_a_file_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in refusal("whatif", "--grid", "batch=1,2", "--out", tmp_path / "file")


@pytest.mark.usefixtures("by_formula")
def test_the_lookahead_study_prints_its_question_and_where_it_pays(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--grid", "batch=1,4", "link_gb_s=25", "--jobs", "1", "--out", str(tmp_path / "o"))
    load = ("--locality", "hisparse", "--context", "65536")
    assert main(["whatif", "--study", "lookahead", *load, *options]) == 0
    out = capsys.readouterr().out
    for words in (
        "still pay once the device keeps 1x, 2x, 4x", "4x lru", "Slots instead of lookahead", "synthetic locality",
        "gains 5% or more",
    ):  # fmt: skip
        assert words in out
    held = json.loads((tmp_path / "o" / "study.json").read_text())
    assert held["study"] == "lookahead"
    assert {"lookahead.png", "lookahead.svg"} == set(held["figures"])
    assert len(held["tables"][4]["rows"]) == 3 * 2


def test_a_grid_loads_no_torch_and_draws_nothing_unasked() -> None:
    script = (
        "import sys; from sparda_core.cli.main import main; code = main(sys.argv[1:]); "
        "loaded = {'torch', 'numba', 'scipy', 'matplotlib', 'joblib'} & set(sys.modules); "
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    for command in (["whatif", *SMALL, "--grid", "batch=1,2", "--json"], ["whatif", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *command], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_same_question_gets_the_same_bytes_in_every_process() -> None:
    grid = ("--grid", "batch=1,2,4096", "selector=query,forecast", "--between", "ctas=2,8", "--json")
    command = [sys.executable, "-m", "sparda_core.cli.main", "whatif", *SMALL, *grid]
    answers = [
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=300
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["counts"] == {"fits": 4, "out-of-memory": 2, "impossible": 6}


GRID = ("--grid", "batch=1:32:32", "runtime=offload-sync,offload-prefetch", "ctas=2,4,8,16")
#: Runs in every process of the command, its workers too: predictions by formula, of which those of the second half
#: of the grid wait for a file and take their time then.
SLOW = """
import os, time
from sparda_core.whatif.scenario import Scenario
from tests.whatif.fakes import usual
def held(scenario):
    while scenario.batch > 16 and not os.path.exists(os.environ["SPARDA_TEST_GATE"]):
        time.sleep(0.01)
    if scenario.batch > 16:
        time.sleep(0.05)
    return usual(scenario)
Scenario.predict = held
"""
#: The same, and of the workers all but the first are slow to come up: they begin when the gate is open.
TARDY = """
import os, sys, time
if "loky" in " ".join(sys.orig_argv) and "tracker" not in " ".join(sys.orig_argv):
    try:
        os.close(os.open(os.environ["SPARDA_TEST_GATE"] + "-first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while not os.path.exists(os.environ["SPARDA_TEST_GATE"]):
            time.sleep(0.01)
"""


def started(out: Path, code: Path, gate: Path, site: str) -> subprocess.Popen[str]:
    """`sparda whatif` on two processes, in a group of its own; a quarter of its rows is done, half waits for `gate`."""
    code.mkdir()
    (code / "sitecustomize.py").write_text(site)
    command = [sys.executable, "-m", "sparda_core.cli.main", "whatif", *GRID, "--jobs", "2", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(code), str(ROOT)]), "SPARDA_TEST_GATE": str(gate)}
    run = subprocess.Popen(
        command, cwd=ROOT, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not (out / "rows.jsonl").exists() or (out / "rows.jsonl").read_bytes().count(b"\n") < 64:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    return run


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize(
    ("kill", "site"), [(signal.SIGINT, SLOW), (signal.SIGINT, TARDY + SLOW), (signal.SIGKILL, SLOW)],
    ids=["interrupted", "interrupted while a worker comes up", "killed"],
)  # fmt: skip
def test_a_run_that_is_stopped_leaves_its_rows_and_goes_on(
    kill: signal.Signals, site: str, capsys: Captured, tmp_path: Path
) -> None:
    pytest.importorskip("joblib")
    out, gate = tmp_path / "out", tmp_path / "gate"
    run = started(out, tmp_path / "code", gate, site)
    os.killpg(run.pid, kill)
    gate.touch()
    _, err = run.communicate(timeout=300)
    before = (out / "rows.jsonl").read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    rows = whole.count(b"\n")
    assert 64 <= rows < 256
    if kill == signal.SIGINT:
        assert run.returncode == 130, err
        assert err == f"sparda: interrupted; {rows} of 256 rows are in {out}: --resume goes on\n"
        assert whole == before
    got = whatif(capsys, *GRID, "--jobs", "1", "--out", out, "--resume")
    assert got["rows"] == whatif(capsys, *GRID, "--jobs", "1")["rows"]
    assert (out / "rows.jsonl").read_bytes().startswith(whole)
