"""How reports of studies are kept under benchmarks/results: five digits, one line a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from sparda_core.evaluate.study.bootstrap import Estimate
from sparda_core.evaluate.study.figures import Figure


def rounded(figure: Figure) -> Figure:
    """The figure to five digits."""
    e = figure.estimate
    value, low, high = (five_digits(v) for v in (e.value, e.low, e.high))
    return attrs.evolve(figure, estimate=Estimate(value=value, low=low, high=high))


def five_digits(value: float) -> float:
    """Five digits; shares that cancel to 1e-17 are 0."""
    return float(f"{round(value, 12):.5g}")


def lines(document: dict[str, Any]) -> Iterator[str]:
    """JSON of a report, taken apart, with one line a figure: small, and a change of one figure changes one line."""
    figures = document.pop("figures")
    yield json.dumps(document)[:-1] + ', "figures": [\n'
    yield ",\n".join(json.dumps(figure, separators=(",", ":")) for figure in figures)
    yield "\n]}\n"
