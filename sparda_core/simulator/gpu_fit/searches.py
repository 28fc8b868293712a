"""From choices and diffs with nothing beside them to what they take by rows, and for each candidate searched."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import alone_s
from sparda_core.work import Work

#: Kind -> the kernel at the usual context, and the one whose candidates differ in number.
SEARCHES = {"select": ("choose", "choose"), "diff": ("diff last-selection", "diff lru")}
#: (candidates, rows, seconds beyond bytes and gap).
Point = tuple[float, int, float]


def search_table(samples: Samples, profile: GpuProfile) -> Table:
    """Numbers of the section `kernels`; empty where the samples are older than candidates are."""
    table: Table = {}
    for kind, (usual, various) in SEARCHES.items():
        rows = [row for row in samples.rows("kernels") if row["kernel"] == various]
        if not any("searched" in row["work"] for row in rows):
            return {}
        context = samples.one("kernels", kernel=usual).get("context")
        here = _points(samples.rows("kernels", kernel=usual, context=context), profile)
        every = sorted({*here, *_points(rows, profile)})
        more = _by_candidates(every)
        table[f"{kind}_searched"] = _curve(more, f"{various}, less what the fewest candidates take, at the same rows")
        words = f"{usual}, less bytes, gap and what its candidates take"
        table[f"{kind}_rows"] = _curve(_by_rows(here, every, more), words)
    return table


def _points(rows: Sequence[Row], profile: GpuProfile) -> list[Point]:
    works = [Work(**row["work"]) for row in rows]
    return [
        (work.searched, int(row["rows"]), middle(row["us"], row["kernel"]) * MICRO - alone_s(profile, work))
        for row, work in zip(rows, works, strict=True)
    ]


def _by_candidates(points: Sequence[Point]) -> dict[float, float]:
    """Seconds more than with the fewest candidates: the median over rows at which both were timed, never less."""
    known, numbers = {(searched, rows): rest for searched, rows, rest in points}, sorted({point[0] for point in points})
    more = {numbers[0]: 0.0}
    for low, high in itertools.pairwise(numbers):
        steps = [known[high, rows] - known[low, rows] for searched, rows, _ in points
                 if searched == low and (high, rows) in known]  # fmt: skip
        more[high] = max(0.0, more[low] + statistics.median(steps or [0.0]))
    return more


def _by_rows(here: Sequence[Point], every: Sequence[Point], more: Mapping[float, float]) -> dict[float, float]:
    """Seconds without what candidates take: of the usual kernel, of the other one where only that was timed."""
    found: dict[float, list[float]] = {}
    usual = {rows for _, rows, _ in here}
    for searched, rows, rest in every:
        if rows not in usual or (searched, rows, rest) in here:
            found.setdefault(float(rows), []).append(max(0.0, rest - more[searched]))
    return {rows: statistics.median(values) for rows, values in sorted(found.items())}


def _curve(points: Mapping[float, float], source: str) -> Table:
    return {
        "tokens": list(points), "s": [rounded(value) for value in points.values()], "source": source,
        "basis": "measured",
    }  # fmt: skip
