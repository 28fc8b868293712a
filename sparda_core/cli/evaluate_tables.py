"""The tables of a study: choices, path, misses, tasks; every figure with its interval over documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from sparda_core.cli.screen import console, show_table

if TYPE_CHECKING:
    from sparda_core.evaluate.study.figures import Figure
    from sparda_core.evaluate.study.report import Report


def show_study(report: Report, folder: Path) -> None:
    """Print a study."""
    machine = report.provenance["machine"]
    where = report.provenance.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    config = report.study["config"]
    out = console()
    out.print(Text(f"Model: {report.study['model']}, {report.study['dtype']}. Machine: {where}."))
    out.print(Text(
        f"{len(report.study['windows'])} windows of {config['window']} tokens from {len(report.documents)} documents, "
        f"positions {config['first']} to {config['window'] - 1}; means over layers 1 and up and KV heads.\n"
    ))  # fmt: skip
    _methods(report)
    _table(report, "recall_oracle", "Recall of the oracle's free blocks", chance=True)
    _table(report, "recall_query", "Recall of query-driven selection's free blocks", chance=True)
    _table(report, "recall_query_from_2", "The same over layers 2 and up", chance=True)
    _table(report, "free_mass", "Attention on free blocks, as a share of the oracle's", against="oracle")
    _table(report, "churn", "Churn of free blocks: share that was not selected a step before")
    _table(report, "kl", "KL(dense || sparse) along the sparse path, nats", digits=4)
    _table(report, "kl", "The same as a ratio to query-driven selection's", against="query")
    _table(report, "kl", "The same as a ratio to InfiniGen's on tokens", against="infinigen-token")
    _table(report, "agreement", "Share of positions with the dense model's likeliest next token")
    dense = _cell(report.find("perplexity", "dense", 0), 2)
    _table(report, "perplexity", f"Perplexity along the sparse path; dense {dense}", digits=2)
    _table(report, "perplexity", "The same as a ratio to a sliding window's of equal budget", against="window")
    _misses(report)
    _tasks(report)
    if not report.documents:
        return
    out.print(Text(f"[low, high]: the middle 95 % over documents drawn anew, {len(report.documents)} of them.", "dim"))
    out.print(Text(f"Files: {folder}"))


def _methods(report: Report) -> None:
    show_table(
        "Methods", ("method", "lead", "entries", "index, bytes a token and layer", "of K"),
        [(m["method"], m["lead"], m["grid"] or "-", m["index_bytes_per_token_and_layer"], f"{m['share_of_k']:.3g}")
         for m in report.methods],
    )  # fmt: skip


def _table(
    report: Report, metric: str, title: str, *, against: str = "", digits: int = 3, chance: bool = False
) -> None:
    budgets = [budget for budget in report.budgets(metric) if budget]  # 0 is the dense model's
    rows = [
        (name, *(_cell(report.find(metric, name, b, against=against), digits) for b in budgets))
        for name in report.names(metric)
        if any(report.find(metric, name, b, against=against) for b in budgets)
    ]
    if not rows:
        return
    if chance:
        rows.append(("chance", *(f"{report.chance[b]:.{digits}f}" for b in budgets)))
    columns = ("method", *(f"budget {b}" for b in budgets))
    show_table(title, columns, rows)


def _misses(report: Report) -> None:
    details = list(dict.fromkeys(f.detail for f in report.figures if f.metric == "misses"))
    for budget in sorted({f.budget for f in report.figures if f.metric == "misses"}):
        names = report.names("misses", details[0])
        rows = [
            (name, *(_cell(report.find("misses", name, budget, detail=d), 2, short=True) for d in details))
            for name in names
        ]
        show_table(f"Blocks moved a step, layer and KV head, budget {budget}, by policy and selections' worth of slots",
                   ("method", *details), rows)  # fmt: skip


def _tasks(report: Report) -> None:
    tasks = list(dict.fromkeys(f.detail for f in report.figures if f.metric == "task_exact"))
    budgets = sorted({f.budget for f in report.figures if f.metric == "task_exact"})
    whats = (("exact", "answered exactly"), ("accuracy", "tokens right"), ("nll", "nats an answer token"))
    for metric, what in whats if tasks else ():
        name = f"task_{metric}"
        lines = [(b, m) for b in budgets for m in dict.fromkeys(x for t in tasks for x in report.names(name, t))]
        rows = [
            (method, budget or None, *(_cell(report.find(name, method, budget, detail=task), 2) for task in tasks))
            for budget, method in lines
            if any(report.find(name, method, budget, detail=task) for task in tasks)
        ]
        tokens = report.study["config"]["task_tokens"]
        show_table(f"Tasks of {tokens} tokens: {what}", ("method", "budget", *tasks), rows)
        less = [
            (method, budget, *(_cell(report.find(name, method, budget, against="dense", detail=t), 2) for t in tasks))
            for budget, method in lines
            if method != "dense" and any(report.find(name, method, budget, detail=task) for task in tasks)
        ]
        show_table(f"Tasks of {tokens} tokens: {what}, less the dense model's", ("method", "budget", *tasks), less)


def _cell(figure: Figure | None, digits: int, *, short: bool = False) -> str:
    if figure is None:
        return "-"
    e = figure.estimate
    value = f"{e.value:.{digits}f}"
    return value if short else f"{value} [{e.low:.{digits}f}, {e.high:.{digits}f}]"
