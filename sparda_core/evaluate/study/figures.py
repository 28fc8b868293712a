"""Figures of a study, each with its interval over documents: one value a row first, then means, differences and ratios.

Means are over windows, and within one over layers 1 .. L-1 and KV heads (layer 0 chooses for itself). Ratios of KL are
geometric means over windows, since one hard document would outweigh the others in a ratio of means.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.evaluate.study.bootstrap import Draws, Estimate

Row = Mapping[str, Any]
Values = dict[tuple[str, str, int], list[float]]

#: Figures of a window's choices and of its path, and what they are.
METRICS: Mapping[str, str] = {
    "recall_query": "of the free blocks that query-driven selection takes, share taken",
    "recall_oracle": "of the free blocks with the most attention, share taken",
    "recall_query_from_2": "recall_query over layers 2 and up",
    "recall_oracle_from_2": "recall_oracle over layers 2 and up",
    "free_mass": "attention on the free blocks taken",
    "total_mass": "attention on all blocks attended, forced ones included",
    "churn": "free blocks that were not selected a step before / free blocks",
    "kl": "KL(dense || sparse) of the next token along the sparse path, nats",
    "agreement": "share of positions with the dense model's likeliest next token",
    "nll": "loss of the true next token, nats",
    "perplexity": "exp of the mean loss",
}
_CHOICE = ("recall_query", "recall_oracle", "free_mass", "churn")
_PATH = ("kl", "agreement", "nll")
#: Labels of Forecasts that differ in the training seed alone: their mean is a method of its own.
_SEED = re.compile(r"(?P<stem>(?:nosa-)?forecast:[\w.-]+?)[.-]s(?:eed)?\d+(?P<grid>@.*)?")


@attrs.frozen(kw_only=True)
class Figure:
    """One number of the report.

    against  the method that a difference or ratio is taken to; "" for a plain mean
    form     "mean", "difference" (method - against), "ratio" (method / against)
    detail   pool policy and size in selections, or the task; "" where there is none
    """

    metric: str
    method: str
    budget: int
    estimate: Estimate
    against: str = ""
    form: str = "mean"
    detail: str = ""

    def flat(self) -> dict[str, Any]:
        """One line of a table."""
        return {
            "metric": self.metric, "detail": self.detail, "method": self.method, "budget": self.budget,
            "form": self.form, "against": self.against, "value": self.estimate.value, "low": self.estimate.low,
            "high": self.estimate.high,
        }  # fmt: skip


def window_values(rows: Sequence[Row]) -> Values:
    """One value a window of every metric, by (metric, method, budget); the dense model has budget 0."""
    values: Values = {}
    for row in rows:
        for key, value in (*_choices(row), *_answers(row)):
            values.setdefault(key, []).append(value)
    return _with_seeds(values)


def _choices(row: Row) -> Iterator[tuple[tuple[str, str, int], float]]:
    forced = _over_layers(row["forced_mass"])
    for method, table in row["choice"].items():
        for metric in _CHOICE:
            for budget, layers in table[metric].items():
                yield (metric, method, int(budget)), _over_layers(layers)
                if metric.startswith("recall") and len(layers) > 2:
                    yield (f"{metric}_from_2", method, int(budget)), _over_layers(layers, first=2)
        for budget, layers in table["free_mass"].items():
            yield ("total_mass", method, int(budget)), forced + _over_layers(layers)


def _answers(row: Row) -> Iterator[tuple[tuple[str, str, int], float]]:
    found = {(m, int(b)): answers for m, table in row["path"].items() for b, answers in table.items()}
    for (method, budget), answers in found.items():
        for metric in _PATH:
            yield (metric, method, budget), answers[metric]
    for answers in list(found.values())[:1]:
        yield ("nll", "dense", 0), answers["dense_nll"]


def miss_values(rows: Sequence[Row]) -> Values:
    """Blocks moved in a step of one head, one value a window, by ("POLICY xSIZE", method, budget); and free blocks."""
    values: Values = {}
    for row in rows:
        for method, table in row["misses"].items():
            for budget, found in table.items():
                sizes = found["lru"]
                plain = {f"last-selection x{size}": found["fresh"] for size in sizes}
                lru = {f"lru x{size}": missed for size, missed in sizes.items()}
                score = {f"score x{size}": missed for size, missed in found.get("score", {}).items()}
                for name, value in {**plain, **lru, **score, "free blocks": found["free"]}.items():
                    values.setdefault((name, method, int(budget)), []).append(value)
    return _with_seeds(values)


def task_values(rows: Sequence[Row]) -> Values:
    """One value a prompt, by ("TASK exact" and so on, method, budget); the dense model has budget 0."""
    values: Values = {}
    for row in rows:
        found = {("dense", 0): row["dense"]}
        found |= {(m, int(b)): three for m, table in row["methods"].items() for b, three in table.items()}
        for (method, budget), three in found.items():
            for metric, value in zip(("exact", "accuracy", "nll"), three, strict=True):
                values.setdefault((metric, method, budget), []).append(value)
    return _with_seeds(values)


def means(values: Values, draws: Draws, detail: str = "") -> Iterator[Figure]:
    """The mean of everything, and of KL the geometric one too."""
    for (metric, method, budget), each in values.items():
        yield Figure(metric=metric, method=method, budget=budget, estimate=draws.mean(each), detail=detail)


def corrected(values: Values, chance: Mapping[int, float], draws: Draws) -> Iterator[Figure]:
    """Recall r above a blind choice's c: (r - c) / (1 - c); NaN where a blind choice takes every free block."""
    for (metric, method, budget), each in values.items():
        if metric.startswith("recall"):
            c = chance[budget]
            above = [(value - c) / (1 - c) if c < 1 else math.nan for value in each]
            yield Figure(metric=f"{metric}_corrected", method=method, budget=budget, estimate=draws.mean(above))


def shares_of_oracle(values: Values, draws: Draws) -> Iterator[Figure]:
    """Free mass taken, as a share of the oracle's."""
    for (metric, method, budget), each in values.items():
        best = values.get((metric, "oracle", budget))
        if metric == "free_mass" and best is not None:
            estimate = draws.ratio_of_means(each, best)
            yield Figure(
                metric=metric, method=method, budget=budget, estimate=estimate, against="oracle", form="ratio"
            )


def perplexities(values: Values, draws: Draws) -> Iterator[Figure]:
    """exp of the mean loss, and the same as a ratio to the dense model's and to a sliding window's of equal budget."""
    for (metric, method, budget), each in values.items():
        if metric != "nll":
            continue
        yield Figure(metric="perplexity", method=method, budget=budget, estimate=draws.mean(each).exp())
        for other, theirs in (("dense", ("nll", "dense", 0)), ("window", ("nll", "window", budget))):
            if theirs in values and method not in (other, "dense"):
                estimate = draws.difference(each, values[theirs]).exp()
                yield Figure(
                    metric="perplexity", method=method, budget=budget, estimate=estimate, against=other, form="ratio"
                )


def pairs(values: Values, draws: Draws, against: Sequence[str], detail: str = "") -> Iterator[Figure]:
    """Every method beside every one of `against`: ratios of KL, differences of all else."""
    for (metric, method, budget), each in values.items():
        for other in against:
            theirs = values.get((metric, other, budget))
            if other == method or theirs is None:
                continue
            positive = metric == "kl" and min(*each, *theirs, 1.0) > 0
            estimate = draws.ratio(each, theirs) if positive else draws.difference(each, theirs)
            yield Figure(
                metric=metric, method=method, budget=budget, estimate=estimate, against=other, detail=detail,
                form="ratio" if positive else "difference",
            )  # fmt: skip


def against_dense(values: Values, draws: Draws, detail: str = "") -> Iterator[Figure]:
    """Every method less the dense model, which has budget 0, prompt by prompt."""
    for (metric, method, budget), each in values.items():
        theirs = values.get((metric, "dense", 0))
        if method != "dense" and theirs is not None:
            yield Figure(
                metric=metric, method=method, budget=budget, estimate=draws.difference(each, theirs), against="dense",
                form="difference", detail=detail,
            )  # fmt: skip


def by_layer(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Recall of every layer, mean over windows: {metric: {method: {budget: [L]}}}."""
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for metric in ("recall_query", "recall_oracle", "free_mass", "churn"):
        for method in rows[0]["choice"] if rows else ():
            for budget in rows[0]["choice"][method][metric]:
                each = [row["choice"][method][metric][budget] for row in rows]
                layers = [sum(column) / len(column) for column in zip(*each, strict=True)]
                table.setdefault(metric, {}).setdefault(method, {})[budget] = layers
    return table


def _over_layers(layers: Sequence[float], first: int = 1) -> float:
    some = [value for value in layers[first:] if not math.isnan(value)]
    return sum(some) / len(some) if some else float("nan")


def _with_seeds(values: Values) -> Values:
    """Add the mean over training seeds, window by window, under the name without the seed and `(n seeds)`."""
    families: dict[tuple[str, str, int], list[list[float]]] = {}
    for (metric, method, budget), each in values.items():
        found = _SEED.fullmatch(method)
        if found:
            families.setdefault((metric, found["stem"] + (found["grid"] or ""), budget), []).append(each)
    for (metric, stem, budget), members in families.items():
        if len(members) > 1:
            mean = [sum(column) / len(column) for column in zip(*members, strict=True)]
            values[metric, f"{stem} ({len(members)} seeds)", budget] = mean
    return values
