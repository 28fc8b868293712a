"""Holds the results of `sparda evaluate` to bars.

python benchmarks/quality_bars.py DIR --coarse LABEL --shipped LABEL --lead2 LABEL --lead4 LABEL --grid METHOD

A label is that of --forecast; where it has training seeds (LABEL.s0, LABEL.s1, ...) their mean is judged. What was not
measured is listed as such, never passed. A bar that must hold beyond its interval asks for the interval's end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from sparda_core.evaluate.study.figures import Figure
from sparda_core.evaluate.study.report import Report, read_report

BUDGETS = (8, 12, 16, 24, 32)
COARSE = dict(zip(BUDGETS, (0.80, 0.84, 0.87, 0.89, 0.90), strict=True))
KL_QUERY = {8: 1.00, 16: 1.05, 32: 1.10}
INFINIGEN = ("infinigen-token", "infinigen-entry", "infinigen-softmax")


@attrs.frozen
class Bar:
    """One bar and what came out; `passed` is None where nothing was measured."""

    what: str
    wanted: str
    found: str
    passed: bool | None


def judge(what: str, figure: Figure | None, *, least: float | None = None, most: float | None = None,
          end: str = "value") -> Bar:  # fmt: skip
    """Hold one number of a figure (its value, low or high end) to a bound."""
    wanted = f"{end} {'>=' if most is None else '<='} {least if most is None else most:g}"
    if figure is None:
        return Bar(what, wanted, "not measured", None)
    e = figure.estimate
    held = getattr(e, end)
    passed = held >= least if least is not None else held <= (most or 0.0)
    return Bar(what, wanted, f"{e.value:.4f} [{e.low:.4f}, {e.high:.4f}]", bool(passed))


def method_of(report: Report, label: str | None, metric: str) -> str:
    """The method that a label stands for: the mean of its seeds where it has some."""
    names = report.names(metric)
    return next((n for n in names if n.startswith(f"forecast:{label} (")), f"forecast:{label}")


def bars(report: Report, args: argparse.Namespace) -> Iterator[Bar]:
    """Every bar whose label is given."""
    if args.coarse:
        yield from coarse_bars(report, method_of(report, args.coarse, "recall_query"))
    for label, lead, least in ((args.lead2, 2, 0.85), (args.lead4, 4, 0.82)):
        if label:
            name = method_of(report, label, "recall_query")
            yield from recall_bars(report, name, 16, least, what=f"lead {lead}")
    if args.shipped:
        yield from shipped_bars(report, method_of(report, args.shipped, "recall_oracle"))
    if args.shipped and args.coarse:
        fine, coarse = (method_of(report, label, "kl") for label in (args.shipped, args.coarse))
        for budget in KL_QUERY:
            ratio = report.find("kl", fine, budget, against=coarse)
            yield judge(f"fine / coarse: KL at {budget}", ratio, most=1.0, end="high")
        for budget in BUDGETS:
            gain = report.find("recall_oracle", fine, budget, against=coarse)
            yield judge(f"fine - coarse: oracle recall at {budget}", gain, least=0.0, end="low")
    if args.grid:
        share = next((m["share_of_k"] for m in report.methods if m["method"] == args.grid), None)
        found = "not measured" if share is None else f"{share:.4g}"
        yield Bar(f"{args.grid}: index as a share of K", "<= 0.25", found, None if share is None else share <= 0.25)
        ratio = report.find("kl", args.grid, 16, against="infinigen-token")
        yield judge(f"{args.grid}: KL / InfiniGen's on tokens at 16", ratio, most=1.0, end="high")


def recall_bars(report: Report, name: str, budget: int, least: float, *, what: str) -> Iterator[Bar]:
    """Recall r against query-driven selection, and the same above a blind choice's c: (r - c) / (1 - c).

    One says what the other says; only the second may be read across budgets and lengths of text, whose c differs.
    """
    figure, chance = report.find("recall_query", name, budget), report.chance.get(budget)
    yield judge(f"{what}: recall against query at {budget}", figure, least=least)
    above = f"{what}: the same above chance at {budget}"
    if chance is None or chance >= 1:
        yield Bar(above, f"value >= ({least:g} - c) / (1 - c)", "not measured", None)
        return
    corrected = report.find("recall_query_corrected", name, budget)
    yield judge(f"{above} ({chance:.4f})", corrected, least=(least - chance) / (1 - chance))


def coarse_bars(report: Report, name: str) -> Iterator[Bar]:
    """Recall against query-driven selection, and above every form of InfiniGen."""
    for budget, least in COARSE.items():
        yield from recall_bars(report, name, budget, least, what=name)
    for other in INFINIGEN:
        for budget in BUDGETS:
            figure = report.find("recall_query", name, budget, against=other)
            yield judge(f"{name} - {other}: recall against query at {budget}", figure, least=0.0, end="low")


def shipped_bars(report: Report, name: str) -> Iterator[Bar]:
    """Against query-driven selection and InfiniGen on the same entries."""
    for budget in BUDGETS:
        figure = report.find("recall_oracle", name, budget, against="query")
        yield judge(f"{name} - query: oracle recall at {budget}", figure, least=0.0, end="low")
    for budget, most in KL_QUERY.items():
        yield judge(f"{name} / query: KL at {budget}", report.find("kl", name, budget, against="query"), most=most)
    for other in INFINIGEN[1:]:
        yield judge(f"{name} / {other}: KL at 16", report.find("kl", name, 16, against=other), most=0.92)
    for budget in BUDGETS:
        figure = report.find("churn", name, budget, against="query")
        yield judge(f"{name} - query: churn at {budget}", figure, most=0.0)
    tasks = list(dict.fromkeys(f.detail for f in report.figures if f.metric == "task_accuracy"))
    for task in tasks:
        for budget in report.budgets("task_accuracy", task):
            if budget:
                figure = report.find("task_accuracy", name, budget, against="query", detail=task)
                yield judge(f"{name} - query: {task} at {budget}", figure, least=0.0, end="high")


def main() -> int:
    """Print the bars as a table or JSON; 1 if one of them is not met or not measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="--out of `sparda evaluate`")
    for name, what in (
        ("coarse", "Forecast of the coarse teacher, lead 1"), ("lead2", "the same of lead 2"),
        ("lead4", "the same of lead 4"), ("shipped", "Forecast of the fine teacher"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", metavar="LABEL", help=what)
    parser.add_argument("--grid", metavar="METHOD", help="method on finer entries, such as forecast:fine@4/4")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = list(bars(read_report(args.folder), args))
    if args.json:
        rows: list[dict[str, Any]] = [attrs.asdict(bar) for bar in found]
        print(json.dumps(rows, indent=1))
    else:
        print("| bar | wanted | found | met |\n| --- | --- | --- | --- |")
        for bar in found:
            print(f"| {bar.what} | {bar.wanted} | {bar.found} | {_word(passed=bar.passed)} |")
    return 0 if all(bar.passed for bar in found) else 1


def _word(*, passed: bool | None) -> str:
    return {True: "yes", False: "NO", None: "-"}[passed]


if __name__ == "__main__":
    raise SystemExit(main())
