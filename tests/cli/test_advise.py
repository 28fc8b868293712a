"""`sparda advise` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sparda_core.cli.main import main
from tests.cli.conftest import Refusal

Captured = pytest.CaptureFixture[str]

FEW = (
    "--selectors", "forecast", "--runtimes", "resident,offload-prefetch", "--slot-factors", "1", "--engines", "uva",
    "--ctas", "2",
)  # fmt: skip
ASKED = ("--context", "65536", "--batch", "8", *FEW)


def advise(capsys: Captured, *options: str) -> Any:
    assert main(["advise", *options, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_advice_names_a_combination_its_margins_and_what_would_flip_it(capsys: Captured) -> None:
    answers = []
    for _ in range(2):
        assert main(["advise", *ASKED, "--json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]  # byte for byte
    got = json.loads(answers[0])
    assert got["feasible"] is True
    assert got["target_met"] is True
    best = got["recommended"]
    assert best["batch"] == 8
    assert best == got["compared"][0]
    assert best["tokens_per_s"] == pytest.approx(8 / best["step_s"])
    assert got["offload_pays"] == (got["margin_over_resident"] > 0.005)
    assert got["runner_up"]["runtime"] != best["runtime"]
    assert {turn["knob"] for turn in got["flips"]} == {"link_gb_s", "churn"}
    assert got["asked"]["locality"] == "infllm-v2"
    assert "ctas" not in got["asked"]
    assert len(got["provenance"]["profile_digest"]) == 12


def test_tables_say_what_was_compared_and_that_nothing_was_measured(capsys: Captured) -> None:
    assert main(["advise", *ASKED]) == 0
    out = capsys.readouterr().out
    for words in ("offloading pays", "target met", "over runner-up", "flips with link_gb_s", "never quality",
                  "Predicted, not measured", "forecast x resident"):  # fmt: skip
        assert words in out


def test_the_csv_holds_the_best_of_each_pair(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "advice.csv"
    got = advise(capsys, *ASKED, "--csv", str(file))
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [row["selector"] for row in rows] == [one["selector"] for one in got["compared"]]
    assert [float(row["step_s"]) for row in rows] == [one["step_s"] for one in got["compared"]]
    assert [row["recommended"] for row in rows].count("True") == 1


def test_where_nothing_fits_one_answer_says_so(capsys: Captured) -> None:
    asked = ("--profile", "rtx-4090", "--context", "4000000", "--host-gb", "8", *FEW)
    got = advise(capsys, *asked)
    assert got["feasible"] is False
    assert "not even one row fits" in got["problem"]
    assert "recommended" not in got
    assert main(["advise", *asked]) == 0
    assert "nothing fits" in capsys.readouterr().out


def test_a_batch_beyond_memory_is_answered_with_what_fits(capsys: Captured) -> None:
    assert main(["advise", "--batch", "500", *FEW]) == 0
    out = capsys.readouterr().out
    assert "of 500 rows at a time; at most" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--selectors", "forcast"), "did you mean 'forecast'"),
        (("--profile", "h20"), "did you mean"),
        (("--locality", "hisparce"), "did you mean 'hisparse'"),
        (("--link-gb-s", "90"), "payload of PCIe 5"),
        (("--slot-factors", "x"), "'x' must list numbers, such as 1,2,4"),
        (("--ctas", ""), "no ctas to choose from"),
        (("--batch", "0"), "'0' must be an integer >= 1"),
        (("--tokens-per-s", "nan"), "'nan' must be a number"),
        (("--batch", "8", "--tokens-per-s", "100"), "two targets"),
        (("--selector", "forecast"), "did you mean --selectors"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_asked_is_refused(options: tuple[str, ...], says: str, refusal: Refusal) -> None:
    assert says in refusal("advise", *options)
