"""What docs/published.md and README.md say in words of the published table, from its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AHEAD, ALONE = "sparda", "sparda-no-prefetch"
#: From this batch on the link, and not the host, bounds the Forecast's cells.
_LARGE = 16


def share(value: float) -> str:
    """A share in whole per cent."""
    return f"{100 * value:.0f} %"


def largest(report: Mapping[str, Any], modes: Sequence[str]) -> float:
    """Largest absolute error of cells in these modes, as a share; the fitted cell left out."""
    return max(abs(float(row["error"])) for row in _judged(report) if row["mode"] in modes)


def sentence(found: Mapping[str, Any]) -> str:
    """The result in a few words, as README.md goes on with after "is met"."""
    plain, fitted = (report["summary"] for report in found["reports"].values())
    return (
        f"with a median error of {share(plain['median_abs_error'])} with nothing fitted, "
        f"{share(fitted['median_abs_error'])} with one launch time fitted to one cell "
        f"(largest {share(fitted['max_abs_error'])}; fastest mode right at {fitted['winners_right']} of "
        f"{fitted['batches_judged']}\n  batches)"
    )


def where_right(found: Mapping[str, Any]) -> str:
    """What of the table comes out, with one launch time fitted."""
    plain, fitted = found["reports"].values()
    query = [abs(row["error"]) for row in _judged(plain) if row["mode"] in ("no-offload", "sync")]
    hosts = [abs(row["error"]) for row in _judged(fitted) if row["batch"] < _LARGE and row["mode"] in (AHEAD, ALONE)]
    gains = [one for one in fitted["summary"]["prefetch_gain"] if one["published"] is not None]
    return (
        f"**Where it is right.** The six query-driven cells, to {_range(100 * one for one in query)} %, with no number "
        'fitted (but see the third step under "What changed the errors"):\na third of a millisecond a layer for '
        "scoring with one warp, every layer's transfer in line. The other two cells that the host bounds (batch 4 "
        f"without prefetch, batch 8 with), to {share(max(hosts))}, from one of them. What prefetch gains over none: "
        f"{_listed(one['published'] for one in gains)} times published at batch "
        f"{', '.join(str(one['batch']) for one in gains)}, and {_listed(one['predicted'] for one in gains)} predicted, "
        "the small loss at batch 4 included."
    )


def where_wrong(found: Mapping[str, Any]) -> str:
    """The Forecast's cells of large batches, and the churns that would explain them."""
    *_, fitted = found["reports"].values()
    off = [100 * row["error"] for row in _judged(fitted) if row["batch"] >= _LARGE and row["mode"] in (AHEAD, ALONE)]
    churns: Mapping[str, float] = found["implied_churn"]
    query = [churn for cell, churn in churns.items() if cell.endswith(", sync")]
    batches = [f"{_pair(churns, batch)} (batch {batch})" for batch in (16, 32, 64)]
    checks = found["prefetch_with_the_churn_of_no_prefetch"]
    each = ", ".join(f"batch {one['batch']}: {100 * abs(one['error']):.1f}" for one in checks)
    worst = max(abs(one["error"]) for one in checks)
    return (
        f"- *Forecast, batch 16 and up: {_range(off)} % too fast.* Its two modes agree on the reason. The churn at "
        f"which a cell would come out as published is {min(query):.2f} to {max(query):.2f} for all five cells of\n"
        f"  `sync`, and {', '.join(batches)} for the Forecast's without and with prefetch. So the Forecast appears to "
        "move more than the query-driven selector\n  does, where one churn is assumed here for both. Given the bytes "
        f"that the mode *without* prefetch implies, the mode *with* it follows within {100 * worst:.1f} % ({each})."
    )


def _judged(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in report["cells"] if row["error"] is not None and not row["fitted"]]


def _pair(churns: Mapping[str, float], batch: int) -> str:
    cells = (f"batch {batch}, {mode}" for mode in (ALONE, AHEAD))
    return " and ".join(f"{churns[cell]:.2f}" for cell in cells if cell in churns)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _range(values: Iterable[float]) -> str:
    every = list(values)
    return f"{min(every):.0f} to {max(every):.0f}"
