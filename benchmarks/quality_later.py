"""Two studies after that of docs/quality.md: a Forecast distilled on its own selections, and a base adapted to them.

python -m benchmarks.quality_later --policy DIR                  keep a study of the Forecasts `shipped` and `policy`
python -m benchmarks.quality_later --adapted DIR --before DIR    keep one on the adapted base, and beside it the same
                                                                 windows and prompts of a study on the base it came from

A DIR is --out of `sparda evaluate`, with its rows. The page itself is filled by benchmarks/quality_page.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.quality_kept import lines, rounded
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.bootstrap import Draws
from sparda_core.evaluate.study.figures import Figure, Row, Values, task_values, window_values
from sparda_core.evaluate.study.report import Report, as_document, make_report, read_report
from sparda_core.files import make_folder, write_whole

RESULTS = Path(__file__).resolve().parent / "results"
POLICY, ADAPTED = RESULTS / "2026-11-30-quality-policy-h200", RESULTS / "2026-11-30-quality-adapted-h200"
SHIPPED, OWN, BEFORE = "forecast:shipped", "forecast:adapted", " (before)"
TASKS = ("passkey", "keys", "copy", "variables")
_METRICS = ("recall_oracle", "recall_query", "kl", "agreement", "churn", "perplexity", "task_accuracy")


@attrs.frozen
class Rows:
    """Rows of a finished study by name, and the digests of its windows' tokens."""

    windows: dict[str, Row]
    tasks: dict[str, Row]
    digests: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> Rows:
        """All rows of a folder; raises ConfigError where there are none."""
        found = [json.loads(path.read_text()) for path in sorted((folder / "rows").glob("*.json"))]
        if not found:
            raise ConfigError(f"folder {str(folder)!r} holds no rows; name the --out of a finished `sparda evaluate`")
        windows = {row["window"]: row for row in found if "window" in row}
        tasks = {f"{row['task']}.{row['sample']}": row for row in found if "task" in row}
        return cls(windows, tasks, json.loads((folder / "study.json").read_text())["windows"])

    def like(self, other: Rows) -> Rows:
        """The rows of the other's windows and prompts, in its order; raises ConfigError where one is not here."""
        for name in other.windows:
            if name not in self.windows or self.digests[name] != other.digests[name]:
                raise ConfigError(f"window {name!r} is not the same in both studies; judge both on the same texts")
        for name, row in other.tasks.items():
            mine = self.tasks.get(name, {})
            if any(mine.get(key) != row[key] for key in ("document", "note", "tokens")):
                raise ConfigError(f"prompt {name!r} is not the same in both studies; judge both with one --seed")
        windows = {name: self.windows[name] for name in other.windows}
        return Rows(windows, {name: self.tasks[name] for name in other.tasks}, self.digests)


def report_of(rows: Rows, read: Report) -> Report:
    """The report of some rows, with the identity of the study that they are of."""
    return make_report(
        list(rows.windows.values()), list(rows.tasks.values()), study=read.study, provenance=read.provenance,
        methods=read.methods, seed=0,
    )  # fmt: skip


def before_and_after(after: Rows, before: Rows, read: Report) -> Report:
    """The report after adaptation; figures of the base on the same rows, and of what changed, beside it.

    A figure of the base has ` (before)` behind its method, one of a change has it behind `against`. Changes are paired
    by window and prompt; those of KL are ratios.
    """
    same, told = before.like(after), ("query", SHIPPED, "dense")
    old = [
        _named_before(figure) for figure in report_of(same, read).figures
        if figure.method in told and figure.against in ("", *told)
    ]  # fmt: skip
    report = report_of(after, read)
    return attrs.evolve(report, figures=[*report.figures, *old, *_changes(after, same)])


def _named_before(figure: Figure) -> Figure:
    against = figure.against + BEFORE if figure.against else ""
    return attrs.evolve(figure, method=figure.method + BEFORE, against=against)


def _changes(after: Rows, before: Rows) -> Iterator[Figure]:
    rows, old = list(after.windows.values()), list(before.windows.values())
    draws = Draws.of([row["document"] for row in rows], seed=0)
    yield from _paired(draws, _with_loss(window_values(rows)), _with_loss(window_values(old)))
    for task in TASKS:
        rows, old = ([row for row in r.tasks.values() if row["task"] == task] for r in (after, before))
        draws = Draws.of([row["document"] for row in rows], seed=0)
        new_values, old_values = (_with_gaps(task_values(each)) for each in (rows, old))
        for figure in _paired(draws, new_values, old_values):
            yield attrs.evolve(figure, metric=f"task_{figure.metric}", detail=task)


def _with_loss(values: Values) -> Values:
    """With the loss above the dense model's, as `perplexity`; its exp is a ratio of perplexities."""
    return _less_dense(values, "nll", "perplexity")


def _with_gaps(values: Values) -> Values:
    """With what each method answers less than its dense model, as `gap`."""
    return _less_dense(values, "accuracy", "gap")


def _less_dense(values: Values, metric: str, name: str) -> Values:
    """With `metric` of each method minus that of the dense model, one by one, as `name`."""
    dense = values[metric, "dense", 0]
    more = {
        (name, method, budget): [a - b for a, b in zip(each, dense, strict=True)]
        for (of, method, budget), each in values.items() if of == metric and method != "dense"
    }  # fmt: skip
    return {**values, **more}


def _paired(draws: Draws, after: Values, before: Values) -> Iterator[Figure]:
    for (metric, method, budget), new in after.items():
        other = SHIPPED if method == OWN else method
        old = before.get((metric, other, budget))
        if old is None or metric not in (*_METRICS, "accuracy", "gap"):
            continue
        form = "ratio" if metric in ("kl", "perplexity") else "difference"
        estimate = draws.ratio(new, old) if metric == "kl" else draws.difference(new, old)
        yield Figure(
            metric=metric, method=method, budget=budget, against=other + BEFORE, form=form,
            estimate=estimate.exp() if metric == "perplexity" else estimate,
        )  # fmt: skip


def kept(report: Report) -> Report:
    """What the page needs, rounded to five digits; files of this repository by their place in it."""
    command = re.sub(r"=/\S*/(sparda_core/)", r"=\1", report.provenance["command"])
    return attrs.evolve(
        report, figures=[rounded(f) for f in report.figures if _needed(f)], layers={},
        provenance={**report.provenance, "command": command},
    )  # fmt: skip


def _needed(figure: Figure) -> bool:
    if figure.against.removesuffix(BEFORE) == "dense":
        return figure.metric in ("perplexity", "task_accuracy")
    return figure.metric in (*_METRICS, "task_gap") or (figure.metric == "task_exact" and not figure.against)


def _write(folder: Path, report: Report) -> None:
    write_whole(make_folder(folder) / "results.json", "".join(lines(as_document(kept(report)))))


def main(words: Sequence[str] | None = None) -> int:
    """Keep what is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, metavar="DIR", help="study of the Forecasts `shipped` and `policy`")
    parser.add_argument("--adapted", type=Path, metavar="DIR", help="study of `shipped` and `adapted`; needs --before")
    parser.add_argument("--before", type=Path, metavar="DIR", help="study on the base that was adapted")
    args = parser.parse_args(words)
    if (args.adapted is None) != (args.before is None):
        parser.error("--adapted and --before go together")
    if args.policy:
        _write(POLICY, report_of(Rows.of(args.policy), read_report(args.policy)))
        sys.stdout.write(f"{POLICY}\n")
    if args.adapted:
        both = before_and_after(Rows.of(args.adapted), Rows.of(args.before), read_report(args.adapted))
        _write(ADAPTED, both)
        sys.stdout.write(f"{ADAPTED}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
