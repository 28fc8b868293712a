"""docs/quality.md from its data: a study of `sparda evaluate` and the trainings whose Forecasts it judged.

python benchmarks/quality_page.py                     fill the page's tables and draw its figures again
python benchmarks/quality_page.py --keep DIR          first keep the study of DIR (figures the page needs, rounded)
python benchmarks/quality_page.py --train DIR         first keep curves and settings of every NAME.json, NAME.curve.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from benchmarks import quality_later, quality_later_tables
from benchmarks.quality_bars import bars
from benchmarks.quality_kept import five_digits, lines, rounded
from sparda_core.bench.page import fill, markdown
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.figures import Figure
from sparda_core.evaluate.study.report import Report, read_report, write_report
from sparda_core.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quality.md"
STUDY = ROOT / "benchmarks" / "results" / "2026-11-30-quality-h200"
TRAININGS = ROOT / "benchmarks" / "results" / "2026-11-30-forecast-training-h200.json"
#: Two trainings and an adaptation that came later; curves have the digits that were printed.
LATER = ROOT / "benchmarks" / "results" / "2026-11-30-forecast-training-later-h200.json"
LABELS = SimpleNamespace(coarse="coarse", shipped="fine", lead2="lead2", lead4="lead4", grid="forecast:grid4")
FINE, COARSE = "forecast:fine (2 seeds)", "forecast:coarse (2 seeds)"
#: Methods of the page's tables, and what they are called there.
SHOWN = {
    "oracle": "oracle", "query": "query-driven", "query@8/8": "query-driven, entries 8/8",
    "query@4/4": "query-driven, entries 4/4", "infinigen-token": "InfiniGen, tokens",
    "infinigen-entry": "InfiniGen, entries", "infinigen-softmax": "InfiniGen, entries, softmax",
    FINE: "**Forecast, fine teacher** (ships)", COARSE: "Forecast, coarse teacher", "forecast:lead2": "coarse, lead 2",
    "forecast:lead4": "coarse, lead 4", "forecast:grid8": "fine, entries 8/8", "forecast:grid4": "fine, entries 4/4",
    "window": "sliding window", "random": "random",
}  # fmt: skip
TASKS = {"passkey": "passkey", "keys": "one of many keys", "copy": "long-range copy", "variables": "variables"}
#: What is kept of a curve.
CURVE = ("step", "loss_nats", "lr", "gradient_norm", "recall_oracle", "recall_query")
#: What a pair of Forecasts is kept for; of all other pairs too much would have to be kept.
_PAIRED = ("kl", "recall_query", "recall_oracle", "churn", "task_accuracy")


def kept(report: Report) -> Report:
    """What the page and its bars need, rounded to five digits."""
    figures = [rounded(f) for f in report.figures if _needed(f)]
    return attrs.evolve(report, figures=figures, layers=_short(report.layers))


def _needed(figure: Figure) -> bool:
    if figure.metric in ("nll", "total_mass", "recall_oracle_from_2", "recall_oracle_from_2_corrected"):
        return False
    if figure.against in ("", "oracle"):
        return True
    if figure.against == "window":
        return figure.metric == "perplexity"
    rivals = ("query", "dense", "infinigen-token", "infinigen-entry", "infinigen-softmax")
    seeds = ".s0" in figure.method or ".s1" in figure.method
    known = figure.against in rivals or (figure.method, figure.against) == (FINE, COARSE)
    return known and not seeds and (figure.metric in _PAIRED or figure.against == "dense")


def _short(layers: Any) -> Any:
    return {
        metric: {m: {"16": [five_digits(v) for v in table["16"]]} for m, table in layers[metric].items()}
        for metric in ("recall_query", "recall_oracle")
    }


def trainings(folder: Path) -> dict[str, Any]:
    """Settings, machine, time and curve of every training whose results lie in a folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        held = json.loads(path.read_text())
        with path.with_suffix("").with_suffix(path.with_suffix("").suffix + ".curve.csv").open() as file:
            points = [row for row in csv.DictReader(file) if int(row["step"]) % 25 == 0 or row["recall_oracle"]]
        curve = [{k: five_digits(float(row[k])) for k in CURVE if row[k]} for row in points]
        keep = ("date", "machine", "training", "training_wall_s", "conditions", "recall")
        found[path.stem] = {**{name: held[name] for name in keep}, "curve": curve}
    return found


def later() -> dict[str, Callable[[], str]]:
    """The tables of the two later studies, which benchmarks/quality_later.py keeps."""
    policy, adapted = (read_report(folder) for folder in (quality_later.POLICY, quality_later.ADAPTED))
    return quality_later_tables.tables(policy, adapted, json.loads(LATER.read_text()))


def filled(page: str, report: Report, runs: dict[str, Any]) -> str:
    """The page with every table as the data make it; raises ConfigError for a table it does not know."""
    tables: dict[str, Callable[[], str]] = {
        "oracle": partial(by_budget, report, "recall_oracle"), "query": partial(by_budget, report, "recall_query"),
        "mass": partial(by_budget, report, "free_mass", against="oracle"),
        "kl": partial(by_budget, report, "kl", digits=4),
        "kl-query": partial(by_budget, report, "kl", against="query", digits=2),
        "kl-token": partial(by_budget, report, "kl", against="infinigen-token", digits=2),
        "agreement": partial(by_budget, report, "agreement"),
        "perplexity": partial(by_budget, report, "perplexity", digits=2),
        "churn": partial(by_budget, report, "churn"), "misses": partial(misses, report, 16),
        **{f"tasks-{b}": partial(tasks, report, b) for b in (8, 16, 32)}, "training": partial(curves, runs),
        "bars": partial(judged, report), **later(),
    }  # fmt: skip

    def made(name: str) -> str:
        if name not in tables:
            raise ConfigError(f"table={name!r} is unknown; known: {', '.join(tables)}")
        return tables[name]()

    return fill(page, made)


def _cell(figure: Figure | None, digits: int = 3) -> str:
    if figure is None:
        return "-"
    e = figure.estimate
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"


def by_budget(report: Report, metric: str, *, against: str = "", digits: int = 3) -> str:
    """A line a method, a column a budget."""
    budgets = [b for b in report.budgets(metric) if b]
    rows = [
        [name, *(_cell(report.find(metric, method, b, against=against), digits) for b in budgets)]
        for method, name in SHOWN.items()
    ]
    if metric in ("recall_oracle", "recall_query") and not against:
        rows.append(["chance", *(f"{report.chance[b]:.3f}" for b in budgets)])
    return markdown(["", *(f"budget {b}" for b in budgets)], [row for row in rows if set(row[1:]) != {"-"}])


def misses(report: Report, budget: int) -> str:
    """Blocks moved a step, layer and KV head, by policy and slots."""
    details = {
        "last-selection x1": "last selection, 1x", "lru x2": "lru, 2x", "lru x4": "lru, 4x", "score x2": "score, 2x",
        "score x4": "score, 4x",
    }  # fmt: skip
    rows = [
        [name, *(_cell(report.find("misses", method, budget, detail=d), 2) for d in details)]
        for method, name in SHOWN.items() if report.find("misses", method, budget, detail="lru x2")
    ]  # fmt: skip
    return markdown(["", *details.values()], rows)


def tasks(report: Report, budget: int) -> str:
    """Share of the answer's tokens that are right."""
    dense = ["dense", *(_cell(report.find("task_accuracy", "dense", 0, detail=t), 2) for t in TASKS)]
    rows = [
        [name, *(_cell(report.find("task_accuracy", method, budget, detail=t), 2) for t in TASKS)]
        for method, name in SHOWN.items()
    ]
    return markdown([f"budget {budget}", *TASKS.values()], [dense, *rows])


def curves(runs: dict[str, Any]) -> str:
    """Recall against the oracle and against query-driven selection while training, at budget 16."""
    steps = (125, 250, 375, 500, 625)
    rows = []
    for name, run in runs.items():
        at = {int(point["step"]): point for point in run["curve"] if "recall_oracle" in point}
        told = [at[s] for s in steps if s in at]
        last = at[max(at)]
        cells = [f"{p['recall_oracle']:.3f}, {p['recall_query']:.3f}" for p in told] + ["-"] * (len(steps) - len(told))
        t = run["training"]
        what = f"{t['teacher']}, lr {t['lr']:g}, lead {t['lead']}, {t['states']} states"
        rows.append([
            name, what, *cells, f"{last['recall_oracle']:.3f}, {last['recall_query']:.3f}", str(t["steps"]),
            f"{run['training_wall_s']:.0f}",
        ])  # fmt: skip
    return markdown(["run", "teacher", *(f"step {s}" for s in steps), "end", "steps", "seconds, ten at once"], rows)


def judged(report: Report) -> str:
    """Every bar, what was found, and whether it is met."""
    word = {True: "yes", False: "**no**", None: "not measured"}
    return markdown(
        ["what", "wanted", "found", "met"],
        [[bar.what, bar.wanted, bar.found, word[bar.passed]] for bar in bars(report, LABELS)],  # type: ignore[arg-type]
    )


def drawn(report: Report) -> Report:
    """What the figures show: a Forecast of several seeds once."""
    names = {name: name for name in SHOWN}
    layers = {
        metric: {m.removesuffix(".s0"): v for m, v in of.items() if m in names or m.endswith(".s0")}
        for metric, of in report.layers.items()
    }
    return attrs.evolve(report, figures=[f for f in report.figures if f.method in SHOWN], layers=layers)


def main(words: Sequence[str] | None = None) -> int:
    """Fill and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="--out of `sparda evaluate`")
    parser.add_argument("--train", type=Path, metavar="DIR", help="folder of trainings' --results")
    args = parser.parse_args(words)
    if args.keep:
        STUDY.mkdir(exist_ok=True)
        write_report(STUDY, kept(read_report(args.keep)))
        held = json.loads((STUDY / "results.json").read_text())
        write_whole(STUDY / "results.json", "".join(lines(held)))
        (STUDY / "results.csv").unlink()
    if args.train:
        write_whole(TRAININGS, json.dumps(trainings(args.train)) + "\n")
    report = read_report(STUDY)
    write_whole(PAGE, filled(PAGE.read_text(), report, json.loads(TRAININGS.read_text())))
    from sparda_core.bench.study_plots import plot_study

    plot_study(drawn(report), ROOT / "docs" / "images")
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
