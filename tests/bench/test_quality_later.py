"""The two later studies of docs/quality.md: how they are kept, and that the page says what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.quality_bars import shipped_bars
from benchmarks.quality_later import ADAPTED, BEFORE, OWN, POLICY, SHIPPED, Rows, before_and_after, kept, main
from benchmarks.quality_later_tables import POLICY as ON_POLICY
from benchmarks.quality_later_tables import gap
from benchmarks.quality_page import LATER, PAGE, TRAININGS
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.report import Report, make_report, read_report
from tests.evaluate.test_study_figures import prompt, row

ON, AFTER, RUNS = read_report(POLICY), read_report(ADAPTED), json.loads(LATER.read_text())
WORDS = re.sub(r"\s+", " ", PAGE.read_text())


def value(report: Report, metric: str, method: str, against: str = "", *, budget: int = 16, detail: str = "") -> float:
    figure = report.find(metric, method, budget, against=against, detail=detail)
    assert figure is not None, (metric, method, against)
    return figure.estimate.value


def missed(report: Report, name: str) -> list[str]:
    return [bar.what.removeprefix(f"{name} ") for bar in shipped_bars(report, name) if bar.passed is False]


def test_the_page_says_what_distilling_on_own_selections_is_worth() -> None:
    ratios = [value(ON, "kl", ON_POLICY, SHIPPED, budget=b) for b in (8, 16, 32)]
    copies = value(ON, "task_accuracy", ON_POLICY, SHIPPED, detail="copy")
    dense, own = (json.loads(TRAININGS.read_text())[name]["curve"] for name in ("fine.s0", "policy"))
    at_375 = next(point for point in dense if point["step"] == 375)
    for said in (
        "its KL is {:.2f}, {:.2f} and {:.2f} times that of the Forecast that ships".format(*ratios),
        f"takes {-value(ON, 'recall_oracle', ON_POLICY, SHIPPED):.3f} less".replace("0.", "."),
        f"copies {-100 * copies:.0f} points worse",
        f"variables lose {-100 * value(ON, 'task_accuracy', ON_POLICY, SHIPPED, detail='variables'):.0f} points at 16",
        f"dense states had {at_375['recall_oracle']:.3f} after 375".replace("0.", "."),
        f"these {own[-1]['recall_oracle']:.3f} at the end".replace("0.", "."),
    ):
        assert said in WORDS, said
    assert ON.study["forecasts"].keys() == {"shipped", "policy"}
    assert RUNS["policy"]["training"]["steps"] == 400
    assert "it had 400 steps and the Forecast that ships 745" in WORDS


def test_the_second_run_on_own_selections_has_the_losses_of_the_first_to_every_digit_printed() -> None:
    first = {point["step"]: point["loss_nats"] for point in json.loads(TRAININGS.read_text())["policy"]["curve"]}
    second = {point["step"]: point["loss_nats"] for point in RUNS["policy"]["curve"] if "loss_nats" in point}
    assert second.keys() == first.keys()
    assert all(abs(first[step] - second[step]) < 1e-4 for step in first)  # four digits were printed


def test_the_page_says_what_an_adapted_base_changes() -> None:
    def copied(method: str) -> float:
        return value(AFTER, "task_accuracy", method, detail="copy")

    def change(method: str, metric: str = "task_accuracy", detail: str = "copy") -> float:
        return value(AFTER, metric, method, method + BEFORE, detail=detail)

    above = [
        100 * (value(AFTER, "perplexity", method + tail, "dense" + tail) - 1)
        for method in ("query", SHIPPED) for tail in (BEFORE, "")
    ]  # fmt: skip
    lead = [value(AFTER, "recall_oracle", SHIPPED + tail, "query" + tail) for tail in (BEFORE, "")]
    for said in (
        f"copies {100 * change('query'):.0f} points more of a passage under query-driven selection",
        f"copy {100 * change('query'):.0f} and {100 * change(SHIPPED):.0f} points more",
        "passkey {:.0f} and {:.0f} points".format(*(100 * change(m, detail="passkey") for m in ("query", SHIPPED))),
        "falls from {:.1f} to {:.1f} % under query-driven selection, from {:.1f} to {:.1f} % with".format(*above),
        f"({change('query', 'kl', ''):.2f} times for query-driven selection, {change(SHIPPED, 'kl', ''):.2f} for",
        f"selection is the same {lead[0]:.3f}".replace("0.", "."),
        f"that Forecast copies {copied(OWN):.2f} there".replace("0.", "."),
        f"query-driven selection copies {copied('query' + BEFORE):.2f} on the base".replace("0.", "."),
    ):
        assert said in WORDS, said
    assert lead[0] == pytest.approx(lead[1], abs=5e-4)
    assert gap(RUNS["adaptation"], "after") < 0.6 * gap(RUNS["adaptation"], "before")
    assert len(AFTER.documents) == len(AFTER.study["windows"]) == 8
    assert AFTER.study["config"]["samples"] == 12


def test_no_missed_bar_is_lifted_and_the_page_says_what_copying_takes() -> None:
    assert missed(ON, SHIPPED) == ["- query: copy at 16", "- query: copy at 32"]
    assert missed(ON, ON_POLICY) == ["/ query: KL at 32", *(f"- query: copy at {b}" for b in (8, 16, 32))]
    assert missed(AFTER, SHIPPED) == ["- query: copy at 8"]
    assert missed(AFTER, OWN) == [
        "- query: oracle recall at 32", "/ query: KL at 16", "/ query: KL at 32", "- query: copy at 8",
        "- query: copy at 16",
    ]  # fmt: skip
    found = [
        100 * value(report, "task_accuracy", method, "query" + tail, detail="copy")
        for report, method, tail in (
            (ON, SHIPPED, ""), (ON, ON_POLICY, ""), (AFTER, SHIPPED, ""), (AFTER, SHIPPED + BEFORE, BEFORE),
            (AFTER, OWN, ""),
        )
    ]  # fmt: skip
    told = [f"{points:.1f}" for points in found]
    assert f"missed one: {told[0]} points here" in WORDS
    assert f"too; the mean of two seeds does not), {told[1]} on policy; on the adapted base {told[2]} for" in WORDS
    assert f"of the base it is {told[3]} and includes 0 as well; {told[4]} for the Forecast distilled there" in WORDS


def small(tmp_path: Path, name: str, level: float, *, note: str = "") -> Path:
    """A folder of a study with two windows and two prompts."""
    folder = tmp_path / name
    (folder / "rows").mkdir(parents=True)
    rows: list[dict[str, Any]] = [{**row(d, level), "window": f"{d}.0"} for d in ("a", "b")]
    for each in rows:  # `row` has no Forecast of these names
        for part in ("choice", "path", "misses"):
            each[part] = {"query": each[part]["query"], SHIPPED: each[part]["forecast:a.s0"]}
    rows += [{**prompt(i, 0.9, {"query": level, SHIPPED: level / 2}), "note": note} for i in range(2)]
    for i, each in enumerate(rows):
        (folder / "rows" / f"{i}.json").write_text(json.dumps(each))
    (folder / "study.json").write_text(json.dumps({"windows": {"a.0": "1", "b.0": "2"}}))
    return folder


def merged(after: Path, before: Path) -> Report:
    provenance = {"command": "sparda evaluate --forecast shipped=/some/where/sparda_core/models/data/a.safetensors"}
    read = make_report(list(Rows.of(after).windows.values()), [], study={}, provenance=provenance, methods=[], seed=0)
    return kept(before_and_after(Rows.of(after), Rows.of(before), read))


def test_before_and_after_are_paired_and_kept_without_places_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.quality_later.TASKS", ("copy",))
    report = merged(small(tmp_path, "after", 0.2), small(tmp_path, "before", 0.1))
    assert value(report, "kl", SHIPPED, SHIPPED + BEFORE, budget=8) == pytest.approx(2.0)
    assert value(report, "kl", SHIPPED + BEFORE, "query" + BEFORE, budget=8) == pytest.approx(0.8)
    assert value(report, "recall_oracle", "query", "query" + BEFORE, budget=8) == pytest.approx(0.1)
    assert value(report, "task_accuracy", "query", "query" + BEFORE, budget=8, detail="copy") == pytest.approx(0.1)
    assert value(report, "task_gap", SHIPPED, SHIPPED + BEFORE, budget=8, detail="copy") == pytest.approx(0.05)
    assert value(report, "task_accuracy", "dense", "dense" + BEFORE, budget=0, detail="copy") == 0
    assert report.provenance["command"] == "sparda evaluate --forecast shipped=sparda_core/models/data/a.safetensors"


def test_studies_of_other_windows_or_prompts_are_not_paired(tmp_path: Path) -> None:
    after, other = small(tmp_path, "after", 0.2), small(tmp_path, "other", 0.1, note="another prompt")
    with pytest.raises(ConfigError, match=r"prompt 'copy.0' is not the same in both studies"):
        Rows.of(other).like(Rows.of(after))
    moved = attrs.evolve(Rows.of(after), digests={"a.0": "1", "b.0": "3"})
    with pytest.raises(ConfigError, match=r"window 'b.0' is not the same in both studies"):
        moved.like(Rows.of(after))
    with pytest.raises(ConfigError, match="holds no rows"):
        Rows.of(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["--adapted", str(after)])
