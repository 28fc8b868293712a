from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparda_core.cli.main import main
from tests.cli.conftest import Refusal

Captured = pytest.CaptureFixture[str]

ASKED = ("--batch", "8", "--context", "32768", "--churn", "0.03")


def predict(capsys: Captured, *options: str | Path) -> Any:
    assert main(["predict", *ASKED, *map(str, options), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_prediction_holds_times_memory_and_where_its_numbers_come_from(capsys: Captured) -> None:
    got = predict(capsys)
    assert got["step_s"] > 0
    assert got["tokens_per_s"] == pytest.approx(8 / got["step_s"])
    assert got["exposed_s"] + got["hidden_s"] == pytest.approx(got["transfer_s"])
    assert got["memory_bytes"]["weights"] > 1e10
    assert got["plan"] == {"lead": 1, "resident_layers": 1, "engine": "uva"}
    assert got["provenance"]["profile"] == "h200"
    assert len(got["provenance"]["profile_digest"]) == 12
    assert got["asked"]["budget"] == 96


def test_the_same_question_gets_the_same_answer_byte_for_byte(capsys: Captured) -> None:
    answers = []
    for _ in range(2):
        assert main(["predict", *ASKED, "--json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "options",
    [
        ("--batch", "16"), ("--context", "65536"), ("--churn", "0.3"), ("--selector", "infinigen"),
        ("--runtime", "offload-sync"), ("--profile", "h100-sxm"), ("--budget", "128"), ("--value-bytes", "1"),
        ("--local", "16", "--budget", "64"), ("--link-gb-s", "5"), ("--engine", "copy-engine"), ("--slots", "256"),
        ("--resident-layers", "16"), ("--shape", "smollm2-135m"), ("--stride", "32"), ("--block", "128"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_knob_moves_something(options: tuple[str, ...], capsys: Captured) -> None:
    def figures(got: Any) -> Any:
        return {key: got[key] for key in ("step_s", "memory_bytes", "by_kind_s")}

    assert figures(predict(capsys, *options)) != figures(predict(capsys))


def test_tables_say_that_nothing_was_measured(capsys: Captured) -> None:
    assert main(["predict", *ASKED]) == 0
    out = capsys.readouterr().out
    for words in ("minicpm4.1-8b on h200", "tokens/s", "exposed", "attend", "weights", "Predicted, not measured"):
        assert words in out


def test_a_point_that_does_not_fit_gets_no_time(capsys: Captured, tmp_path: Path) -> None:
    got = predict(capsys, "--batch", "4096", "--context", "1000000")
    assert got["feasible"] is False
    assert "out of memory" in got["problem"]
    assert "step_s" not in got
    assert main(["predict", *ASKED, "--batch", "4096", "--context", "1000000"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert main(["predict", *ASKED, "--context", "10000000", "--trace", str(tmp_path / "trace.json")]) == 0
    assert "no trace" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert got["problem"] in " ".join(out.split()), "the way out is not cut off"
    assert "tokens/s" not in out


def test_a_title_names_the_engine_where_something_moves_and_slots_beyond_the_budget(capsys: Captured) -> None:
    titles = []
    for options in ((), ("--runtime", "resident"), ("--slot-factor", "2", "--policy", "lru")):
        assert main(["predict", *ASKED, *options]) == 0
        titles.append(capsys.readouterr().out.splitlines()[0])
    assert ["(uva)" in title for title in titles] == [True, False, True]
    assert ["192 slots (lru)" in title for title in titles] == [False, False, True]


def test_a_predicted_trace_can_be_written(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    got = predict(capsys, "--trace", file)
    slices = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    last_ns = max(e["args"]["end_ns"] for e in slices)
    assert last_ns / 1e9 == pytest.approx(got["step_s"], rel=1e-6)


def test_a_prediction_can_be_written_as_one_row(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "row.csv"
    got = predict(capsys, "--csv", file, "--selector-option", "lead=1")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 1
    assert float(rows[0]["step_s"]) == got["step_s"]
    assert rows[0]["batch"] == "8"
    assert rows[0]["selector_options"] == "lead=1"
    assert rows[0]["profile_digest"] == got["provenance"]["profile_digest"]
    predict(capsys, "--csv", file, "--batch", "4096", "--context", "1000000")
    short = next(csv.DictReader(file.read_text().splitlines()))
    assert short["feasible"] == "False"
    assert "step_s" not in short


def test_an_explanation_names_three_knobs_and_the_nearest_change_of_bound(capsys: Captured) -> None:
    got = predict(capsys, "--explain")
    assert "steepest" not in predict(capsys)
    assert len(got["steepest"]) == 3
    assert {turn["knob"] for turn in got["next_bound"]} == {"link_gb_s", "batch", "churn", "context"}
    assert main(["predict", *ASKED, "--explain", "--runtime", "resident"]) == 0
    out = capsys.readouterr().out
    assert "three knobs that move tokens/s most" in out
    assert "nearest change of bound" in out


def test_a_prompt_is_predicted_chunk_by_chunk(capsys: Captured) -> None:
    got = predict(capsys, "--phase", "prefill", "--chunk", "4096")
    assert got["steps"] == 8
    assert got["tokens_per_s"] == pytest.approx(32768 / got["total_s"])
    assert main(["predict", *ASKED, "--phase", "prefill"]) == 0
    out = capsys.readouterr().out
    assert "prefill of 32768 tokens in chunks of 2048 (dense)" in out
    assert "all 16 chunks" in out


def test_misses_come_from_a_locality_where_one_is_named(capsys: Captured) -> None:
    assert main(["predict", "--batch", "8", "--context", "32768", "--locality", "hisparse"]) == 0
    assert "Misses: hisparse, churn 0.3" in capsys.readouterr().out


def test_what_lies_outside_the_calibration_is_accepted_on_request_and_marked(capsys: Captured) -> None:
    got = predict(capsys, "--ctas", "64", "--extrapolate")
    assert "copy_ctas=64" in got["provenance"]["extrapolated"]
    assert main(["predict", *ASKED, "--ctas", "64", "--extrapolate"]) == 0
    assert "Extrapolated beyond what was measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ctas", "64"), "outside the calibrated domain"),
        (("--batch", "300", "--context", "64"), "op 'embed' is outside the calibrated domain"),
        (("--link-gb-s", "70"), "payload of PCIe 5"),
        (("--phase", "prefil"), "did you mean 'prefill'"),
        (("--locality", "hisparce"), "did you mean 'hisparse'"),
        (("--slots", "96", "--slot-factor", "2"), "set the same thing"),
        (("--slotfactor", "2"), "did you mean --slot-factor"),
        (("--lead", "0"), "0 layers early"),
        (("--batch", "99999999999"), "batch=99999999999 must be between 1 and"),
        (("--csv", "/nowhere/row.csv"), "/nowhere/row.csv"),
        (("--shape", "minicpm"), "did you mean 'minicpm4.1-8b'?"),
        (("--profile", "h20"), "did you mean 'h200'?"),
        (("--profile", "absent.toml"), "absent.toml"),
        (("--selector", "forcast"), "did you mean 'forecast'?"),
        (("--runtime", "prefetch"), "known: offload-prefetch, offload-sync, resident"),
        (("--selector", "query"), "nearest workable choice"),
        (("--engine", "thread"), "write the plan with one of: uva, copy-engine, cpu-gather"),
        (("--budget", "33"), "budget=33 must be >= 34"),
        (("--churn", "1.5"), "'1.5' must be a number between 0 and 1"),
        (("--churn", "nan"), "'nan' must be a number between 0 and 1"),
        (("--batch", "0"), "'0' must be an integer >= 1"),
        (("--context", "1e6"), "'1e6' must be an integer >= 1"),
        (("--slots", "95"), "slots=95 must be >= budget=96"),
        (("--block", "60"), "block=60 must be a multiple of stride=16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_predicted_is_refused(options: tuple[str, ...], says: str, refusal: Refusal) -> None:
    assert says in refusal("predict", *ASKED, *options)


def test_a_profile_that_is_broken_names_the_field(refusal: Refusal, tmp_path: Path, capsys: Captured) -> None:
    from sparda_core.simulator.derive import FOLDER

    text = (FOLDER / "h200.toml").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("generation", "generatoin"))
    assert "generatoin" in refusal("predict", "--profile", file)
    assert "generatoin" in refusal("profile", "lint", file)


def test_a_trace_that_cannot_be_written_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    assert "absent" in refusal("predict", *ASKED, "--trace", tmp_path / "absent" / "t.json")


def test_predicting_and_listing_load_no_torch() -> None:
    script = (
        "import sys; from sparda_core.cli.main import main; code = main(sys.argv[1:]); "
        "loaded = {'torch', 'numba', 'transformers'} & set(sys.modules); "
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    for command in (
        ["predict", *ASKED, "--json"], ["methods", "--json"], ["profile", "list", "--json"], ["--help"],
        ["compare", "--help"], ["generate", "--help"], ["timeline", "--help"], ["calibrate", "--help"],
        ["record", "--help"],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", script, *command], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_shipped_profiles_are_listed_shown_and_sound(capsys: Captured) -> None:
    assert main(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"h200", "h100-sxm"} <= {item["name"] for item in listed}
    assert main(["profile", "lint"]) == 0
    assert "Nothing wrong with" in capsys.readouterr().out
    assert main(["profile", "show", "h200"]) == 0
    shown = capsys.readouterr().out
    for words in ("memory.hbm_bytes_per_s", "B/s", "measured", "prior", "compute.wave_share"):
        assert words in shown


def test_profile_show_takes_one_name(refusal: Refusal) -> None:
    assert "takes one profile; known: a100-sxm, b200, gh200" in refusal("profile", "show")
    assert "takes no names" in refusal("profile", "list", "h200")
    assert "invalid choice: 'look'" in refusal("profile", "look")
    assert "did you mean 'h200'?" in refusal("profile", "show", "h2000")


@pytest.mark.parametrize(
    ("option", "suffix"), [("--profile", ".toml"), ("--locality", ".toml"), ("--recording", ".npz")]
)
def test_a_path_that_can_be_no_file_of_its_kind_is_told_how_one_ends(
    option: str, suffix: str, tmp_path: Path, refusal: Refusal
) -> None:
    assert f"; or name a file that ends in {suffix}" in refusal("predict", option, tmp_path)
    assert "cannot be read: No such file or directory; " in refusal("predict", option, tmp_path / f"none{suffix}")
