"""docs/quality.md says what its data say."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from safetensors import safe_open

from benchmarks.quality_bars import bars
from benchmarks.quality_page import COARSE, FINE, LABELS, PAGE, STUDY, TRAININGS, filled
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.report import read_report
from sparda_core.models.load import SHIPPED_FORECAST

REPORT, RUNS, TEXT = read_report(STUDY), json.loads(TRAININGS.read_text()), PAGE.read_text()


def value(metric: str, method: str, budget: int, against: str = "", detail: str = "") -> float:
    figure = REPORT.find(metric, method, budget, against=against, detail=detail)
    assert figure is not None
    return figure.estimate.value


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert TEXT.count("<!-- table: ") == 20
    assert filled(TEXT, REPORT, RUNS) == TEXT
    with pytest.raises(ConfigError, match="table='none' is unknown"):
        filled("<!-- table: none -->\n<!-- end -->", REPORT, RUNS)


def test_what_the_text_says_is_in_the_data() -> None:
    words = re.sub(r"\s+", " ", TEXT)
    r = {name: value("recall_oracle", name, 16) for name in (FINE, "query")}
    ratios = [value("kl", FINE, budget, against="query") for budget in (8, 16, 32)]
    ahead = [value("recall_query", name, 16) for name in (COARSE, "forecast:lead2", "forecast:lead4")]
    moved = [value("misses", name, 16, detail="lru x4") for name in (FINE, "query")]
    copies = [value("task_accuracy", f"forecast:{name}", 16, detail="copy") for name in ("grid8", "grid4")]
    for said in (
        f"recall of the oracle's blocks {r[FINE]:.3f} against {r['query']:.3f} at budget 16".replace("0.", "."),
        "KL to the dense model {:.2f}, {:.2f} and {:.2f} of".format(*ratios),
        "({:.3f} against {:.3f} at 16)".format(*(value("churn", m, 16) for m in (FINE, "query"))).replace("0.", "."),
        "at 16 is {:.2f} (softmax) to {:.2f} times".format(
            *(1 / value("kl", FINE, 16, against=f"infinigen-{form}") for form in ("softmax", "entry"))
        ),
        f"copying at budget 16 loses {-100 * value('task_accuracy', FINE, 16, 'query', 'copy'):.0f} points",
        f"finding keys gains {100 * value('task_accuracy', FINE, 16, 'query', 'keys'):.0f},",
        f"Forecast's KL at 16 is {value('kl', 'forecast:grid4', 16, 'infinigen-token'):.2f} of InfiniGen's on tokens",
        "recall at 16 is {:.3f}, {:.3f} and {:.3f} with leads of 1, 2 and 4".format(*ahead).replace("0.", "."),
        f"slots {moved[0]:.2f} of 11 free blocks a step, layer and head still cross the link ({moved[1]:.2f} for",
        "lift copying to {:.2f} (8/8) and {:.2f} (4/4)".format(*copies).replace("0.", "."),
    ):
        assert said in words, said


def test_one_bar_is_missed_and_the_page_says_which() -> None:
    assert [bar.what for bar in bars(REPORT, LABELS) if not bar.passed] == [f"{FINE} - query: copy at 16"]  # type: ignore[arg-type]
    assert "**One task is worse**: long-range copying at budget 16" in TEXT


def test_the_forecast_that_ships_is_one_of_the_judged() -> None:
    with safe_open(str(SHIPPED_FORECAST), "pt") as file:
        made = json.loads(file.metadata()["sparda"])
    ran = RUNS["fine.s0"]["training"]
    assert {name: made[name] for name in ("teacher", "steps", "lr", "seed")} == {
        name: ran[name] for name in ("teacher", "steps", "lr", "seed")
    }
    assert REPORT.study["forecasts"]["fine.s0"] == hashlib.sha256(SHIPPED_FORECAST.read_bytes()).hexdigest()
