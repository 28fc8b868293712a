"""The report of a study: all its figures, and the folder's files. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.evaluate.study.bootstrap import Draws, Estimate
from sparda_core.evaluate.study.figures import (
    Figure,
    Row,
    Values,
    against_dense,
    by_layer,
    corrected,
    means,
    miss_values,
    pairs,
    perplexities,
    shares_of_oracle,
    task_values,
    window_values,
)
from sparda_core.evaluate.study.methods import KINDS, LABELLED, Method
from sparda_core.fields import NUMBER, TEXT_OR_NONE, require
from sparda_core.files import csv_text, parse_json, read_document, write_whole
from sparda_core.shapes import ModelShape

#: Methods that every other is paired with, where they were measured; every Forecast is one, too.
RIVALS = ("query", "infinigen-token", "infinigen-released", "infinigen-entry", "infinigen-softmax", "window")
RESULTS, TABLE = "results.json", "results.csv"


@attrs.frozen(kw_only=True)
class Report:
    """A finished study.

    study       its identity: config, methods, windows, digests
    provenance  machine, versions, command, date
    methods     one a method: lead, grid, bytes of its index
    chance      recall of a blind choice by budget
    figures     everything measured, with intervals
    layers      recall, mass and churn of every layer, by metric, method and budget
    """

    study: Mapping[str, Any]
    provenance: Mapping[str, Any]
    methods: Sequence[Mapping[str, Any]]
    documents: Sequence[str]
    chance: Mapping[int, float]
    figures: Sequence[Figure]
    layers: Mapping[str, Any]

    def find(
        self, metric: str, method: str, budget: int, *, against: str = "", detail: str = "", form: str = ""
    ) -> Figure | None:
        """One figure; None where it was not measured."""
        want = (metric, method, budget, against, detail)
        for figure in self.figures:
            known = (figure.metric, figure.method, figure.budget, figure.against, figure.detail)
            if known == want and form in ("", figure.form):
                return figure
        return None

    def names(self, metric: str, detail: str = "") -> list[str]:
        """Methods that a metric was measured for, in order."""
        return list(dict.fromkeys(
            f.method for f in self.figures if f.metric == metric and f.detail == detail and not f.against
        ))  # fmt: skip

    def budgets(self, metric: str, detail: str = "") -> list[int]:
        """Budgets that a metric was measured at, rising."""
        return sorted({f.budget for f in self.figures if f.metric == metric and f.detail == detail and not f.against})


def make_report(
    windows: Sequence[Row], tasks: Sequence[Row], *, study: Mapping[str, Any], provenance: Mapping[str, Any],
    methods: Sequence[Mapping[str, Any]], seed: int,
) -> Report:  # fmt: skip
    """All figures of a study's rows; raises ConfigError where there are no rows at all."""
    if not windows and not tasks:
        raise ConfigError("the study has neither windows nor tasks; measure at least one")
    chance = {int(b): c for b, c in windows[0]["chance"].items()} if windows else {}
    return Report(
        study=study, provenance=provenance, methods=methods, chance=chance,
        documents=sorted({row["document"] for row in windows}),
        figures=[*_of_windows(windows, chance, seed), *_of_tasks(tasks, seed)], layers=by_layer(windows),
    )  # fmt: skip


def _of_windows(rows: Sequence[Row], chance: Mapping[int, float], seed: int) -> Iterator[Figure]:
    if not rows:
        return
    draws = Draws.of([row["document"] for row in rows], seed=seed)
    values = window_values(rows)
    yield from means(values, draws)
    yield from corrected(values, chance, draws)
    yield from shares_of_oracle(values, draws)
    yield from pairs(values, draws, (*RIVALS, *_forecasts(values)))
    yield from perplexities(values, draws)
    moved = miss_values(rows)
    for (name, method, budget), each in moved.items():
        yield Figure(metric="misses", detail=name, method=method, budget=budget, estimate=draws.mean(each))
        theirs = moved.get((name, "query", budget))
        if theirs is not None and method != "query":
            yield Figure(
                metric="misses", detail=name, method=method, budget=budget, against="query", form="difference",
                estimate=draws.difference(each, theirs),
            )  # fmt: skip


def _of_tasks(rows: Sequence[Row], seed: int) -> Iterator[Figure]:
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        draws = Draws.of([row["document"] for row in mine], seed=seed)
        values = task_values(mine)
        for figure in means(values, draws, detail=task):
            yield attrs.evolve(figure, metric=f"task_{figure.metric}")
        rivals = ("query", *_forecasts(values))
        for figure in (*pairs(values, draws, rivals, detail=task), *against_dense(values, draws, detail=task)):
            yield attrs.evolve(figure, metric=f"task_{figure.metric}")


def _forecasts(values: Values) -> list[str]:
    return list(dict.fromkeys(method for _, method, _ in values if method.startswith(LABELLED)))


def describe_methods(methods: Sequence[Method], leads: Mapping[str, int], shape: ModelShape) -> list[dict[str, Any]]:
    """What each method is and what it reads."""
    return [
        {
            "method": m.name, "what": KINDS[m.kind], "lead": leads[m.name],
            "grid": f"{m.window}/{m.stride}" if m.stride else None,
            "index_bytes_per_token_and_layer": m.index_bytes_per_token(shape), "share_of_k": m.share_of_k(shape),
        }
        for m in methods
    ]  # fmt: skip


def write_report(folder: Path, report: Report) -> None:
    """results.json and results.csv; raises OSError where they cannot be written."""
    write_whole(folder / RESULTS, json.dumps(_plain(as_document(report)), indent=1, allow_nan=False) + "\n")
    write_whole(folder / TABLE, csv_text([figure.flat() for figure in report.figures]))


def read_report(folder: Path) -> Report:
    """The report in a folder's results.json; raises ConfigError where there is none, RecordingError where damaged."""
    path = folder / RESULTS
    if not path.is_file():
        raise ConfigError(f"folder {str(folder)!r} holds no {RESULTS}; name the --out of a finished `sparda evaluate`")
    try:
        held = parse_json(read_document(path))
        figures = [_figure(flat) for flat in held.pop("figures")]
        chance = {int(budget): float(value) for budget, value in held.pop("chance").items()}
        report = Report(**held, figures=figures, chance=chance)
        _check(report)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as wrong:
        raise RecordingError(f"{path} is damaged ({wrong!r}); run the study again, its rows are kept") from wrong
    return report


def _check(report: Report) -> None:
    """Raise TypeError or LookupError where the parts of a report are not those that `make_report` makes."""
    study = require(report.study, "study", model=str, dtype=str, windows=dict, config=dict)
    require(study["config"], "study.config", window=int, first=int, task_tokens=int)
    machine = require(report.provenance, "provenance", machine=dict)["machine"]
    require(machine, "provenance.machine", cpu=str, cores=int)
    require(attrs.asdict(report, recurse=False), "report", methods=list, documents=list, layers=dict)
    for method in report.methods:
        require(
            method, "methods", method=str, lead=int, grid=TEXT_OR_NONE, index_bytes_per_token_and_layer=NUMBER,
            share_of_k=NUMBER,
        )  # fmt: skip
    if not all(isinstance(document, str) for document in report.documents):
        raise TypeError("documents must be texts")
    for figure in report.figures:
        if figure.metric.startswith("recall") and figure.budget:
            _ = report.chance[figure.budget]


def _figure(flat: Mapping[str, Any]) -> Figure:
    require(flat, "figures", metric=str, method=str, budget=int, against=str, form=str, detail=str)
    bounds = {name: math.nan if flat[name] is None else float(flat[name]) for name in ("value", "low", "high")}
    known = {name: flat[name] for name in ("metric", "method", "budget", "against", "form", "detail")}
    return Figure(estimate=Estimate(**bounds), **known)


def as_document(report: Report) -> dict[str, Any]:
    """The report as plain values, every figure one flat object."""
    return {**attrs.asdict(report, recurse=False), "figures": [figure.flat() for figure in report.figures]}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # JSON has no word for NaN.
    return None if isinstance(value, float) and math.isnan(value) else value
