"""Tables of docs/quality.md on two later questions: distilling on own selections, and a base adapted to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.quality_bars import Bar, shipped_bars
from benchmarks.quality_later import BEFORE, OWN, SHIPPED, TASKS
from sparda_core.bench.page import markdown
from sparda_core.evaluate.study.figures import Figure
from sparda_core.evaluate.study.report import Report

POLICY = "forecast:policy"
NAMES = {"query": "query-driven", SHIPPED: "Forecast that ships", OWN: "Forecast distilled on it"}
WORDS = {
    "passkey": "passkey", "keys": "one of many keys", "copy": "long-range copy", "variables": "variables",
    "recall_oracle": "recall of the oracle's blocks", "recall_query": "recall of query-driven's blocks",
    "churn": "churn", "agreement": "likeliest token agrees", "kl": "KL",
}  # fmt: skip
BUDGETS = (8, 16, 32)
STEPS = (50, 100, 150, 200, 300, 400)


def tables(policy: Report, adapted: Report, runs: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Every table by its name on the page."""
    return {
        "policy": partial(on_policy, policy), "adaptation": partial(adaptation, runs["adaptation"]),
        "adapted": partial(before_after, adapted), "later-bars": partial(bars_beside, policy, adapted),
        "training-later": partial(curves, runs),
    }  # fmt: skip


def _cell(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "-"
    e = figure.estimate
    value, low, high = (f"{round(v, digits) + 0.0:.{digits}f}" for v in (e.value, e.low, e.high))  # no -0.00
    return f"{value} [{low}, {high}]"


def on_policy(report: Report) -> str:
    """The on-policy Forecast against the one that ships, paired; a column a budget."""
    rows = []
    for name, method, against in (
        ("KL, ships / query-driven", SHIPPED, "query"), ("KL, on-policy / query-driven", POLICY, "query"),
        ("KL, on-policy / ships", POLICY, SHIPPED),
    ):  # fmt: skip
        rows.append([name, *(_cell(report.find("kl", method, b, against=against), 2) for b in BUDGETS)])
    for metric in ("recall_oracle", "recall_query", "agreement", "churn"):
        cells = [_cell(report.find(metric, POLICY, b, against=SHIPPED), 4) for b in BUDGETS]
        rows.append([f"{WORDS[metric]}, on-policy - ships", *cells])
    for task in TASKS:
        found = [report.find("task_accuracy", POLICY, b, against=SHIPPED, detail=task) for b in BUDGETS]
        rows.append([f"{WORDS[task]}, on-policy - ships", *(_cell(figure, 3) for figure in found)])
    return markdown(["", *(f"budget {b}" for b in BUDGETS)], rows)


def adaptation(run: Mapping[str, Any]) -> str:
    """Held-out loss before and after, dense and sparse, and how far apart they are."""
    held = run["held_out"]
    rows = [
        [when, f"{held[when]['dense']:.4f}", f"{held[when]['sparse']:.4f}", f"{gap(run, when):.4f}"]
        for when in ("before", "after")
    ]
    return markdown(["held-out loss, nats", "dense", "sparse, budget 16", "sparse - dense"], rows)


def gap(run: Mapping[str, Any], when: str) -> float:
    """Held-out loss with sparse attention above that with dense, nats."""
    return float(run["held_out"][when]["sparse"] - run["held_out"][when]["dense"])


def before_after(report: Report) -> str:
    """The same windows and prompts on the base and on the adapted base, budget 16; the change is paired."""
    rows = []
    for metric, digits in (("recall_oracle", 3), ("kl", 4), ("agreement", 3), ("churn", 3)):
        for method, name in NAMES.items():
            word = "KL to its own dense model" if metric == "kl" else WORDS[metric]
            rows.append([f"{word}, {name}", *_three(report, metric, method, digits=digits)])
    for method, name in NAMES.items():
        rows.append([
            f"perplexity / dense's, {name}",
            *_three(report, "perplexity", method, digits=3, against="dense"),
        ])  # fmt: skip
    for task in TASKS:
        dense = [_cell(report.find("task_accuracy", m, 0, detail=task), 2) for m in ("dense" + BEFORE, "dense")]
        change = report.find("task_accuracy", "dense", 0, against="dense" + BEFORE, detail=task)
        rows.append([f"{WORDS[task]}, dense", *dense, _cell(change, 2)])
        for method, name in NAMES.items():
            three = _three(report, "task_accuracy", method, digits=2, against="dense", detail=task, change="task_gap")
            rows.append([f"{WORDS[task]}, {name} less dense", *three])
    return markdown(["budget 16", "base", "adapted base", "change (of KL and perplexity: ratio)"], rows)


def _three(
    report: Report, metric: str, method: str, *, digits: int, against: str = "", detail: str = "", change: str = ""
) -> list[str]:
    """Before, after and the change; what was distilled on the adapted base is beside the Forecast that ships before."""
    old = SHIPPED if method == OWN else method
    before = report.find(metric, old + BEFORE, 16, against=against + BEFORE if against else "", detail=detail)
    after = report.find(metric, method, 16, against=against, detail=detail)
    changed = report.find(change or metric, method, 16, against=old + BEFORE, detail=detail)
    return ["-" if method == OWN else _cell(before, digits), _cell(after, digits), _cell(changed, digits)]


def bars_beside(policy: Report, adapted: Report) -> str:
    """The bars of the Forecast that ships, for every Forecast on either base."""
    columns = [(policy, SHIPPED), (policy, POLICY), (adapted, SHIPPED), (adapted, OWN)]
    judged = [[_short(bar, name) for bar in shipped_bars(report, name)] for report, name in columns]
    rows = [[*both[0][:2], *(each[2] for each in both)] for both in zip(*judged, strict=True)]
    head = ["", "wanted", "base: ships", "base: on-policy", "adapted base: ships", "adapted base: distilled on it"]
    return markdown(head, [row for row in rows if set(row[2:]) != {"-"}])


def _short(bar: Bar, name: str) -> tuple[str, str, str]:
    what = bar.what.removeprefix(name).removeprefix(" ")
    found = bar.found.replace("not measured", "-")
    return what, bar.wanted, found if bar.passed is not False else f"{found} **no**"


def curves(runs: Mapping[str, Any]) -> str:
    """Recall of the oracle's and of query-driven selection's blocks while training, at budget 16."""
    rows = []
    for name in ("policy", "adapted"):
        run = runs[name]
        at = {point["step"]: point for point in run["curve"] if "recall_oracle" in point}
        cells = [f"{at[s]['recall_oracle']:.3f}, {at[s]['recall_query']:.3f}" if s in at else "-" for s in (0, *STEPS)]
        t = run["training"]
        rows.append([name, f"{t['base_model']}, {t['teacher']}, lr {t['lr']:g}, {t['states']} states", *cells])
    return markdown(["run", "base, teacher", "start", *(f"step {s}" for s in STEPS)], rows)
