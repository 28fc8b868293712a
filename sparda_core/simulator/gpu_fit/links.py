"""From copies by the engine to the link's rates, a call's fixed cost and the curve of small pieces."""

from __future__ import annotations

from sparda_core.simulator.gpu_fit.quantities import MICRO, Table, measured, middle, rounded
from sparda_core.simulator.gpu_fit.samples import Row, Samples

#: Single copies whose time beyond their bytes is the cost of a call: long enough to be no matter of the clock.
CALL_BYTES = (2**20, 2**24)


def link_table(samples: Samples) -> Table:
    """The sections `link` (its rates) and `copy_engine`. Raises ProfileError where samples are missing."""
    singles = samples.rows("copy-engine", pieces=1)
    largest = max(row["bytes"] for row in singles)
    up, down, both = (
        _rate(samples.one("copy-engine", way=way, pieces=1, bytes=largest)) for way in ("h2d", "d2h", "both")
    )
    whole = f"copy engine, {largest / 2**20:g} MiB pinned"
    return {
        "link": {
            "h2d_bytes_per_s": measured(up, "B/s", f"{whole}, up"),
            "d2h_bytes_per_s": measured(down, "B/s", f"{whole}, down"),
            # Either way alone may be the slower one by the clock's grain.
            "both_ways_bytes_per_s": measured(min(both, up, down), "B/s", f"{whole}, each way with both busy"),
        },
        "copy_engine": {
            "call_s": measured(_call_s(singles, up), "s", "single copies of 1 to 16 MiB up, less bytes at full rate"),
            "whole_bytes_per_s": measured(up, "B/s", f"{whole}, up"),
            "pieces": _pieces(samples),
        },
    }  # fmt: skip


def _rate(row: Row) -> float:
    return float(row["bytes"]) / (middle(row["us"], f"copies {row['way']}") * MICRO)


def _call_s(singles: list[Row], up: float) -> float:
    low, high = CALL_BYTES
    extra = [
        middle(row["us"], "single copies") * MICRO - row["bytes"] / up
        for row in singles
        if row["way"] == "h2d" and low <= row["bytes"] <= high
    ]
    return max(1e-7, middle(extra, f"single copies of {low} to {high} bytes"))


def _pieces(samples: Samples) -> Table:
    """Rates of one call of as many pieces as were tried, by their size; never faster for smaller ones."""
    many = [row for row in samples.rows("copy-engine", way="h2d") if row["pieces"] > 1]
    most = max((row["pieces"] for row in many), default=0)
    rates = {row["bytes"] / row["pieces"]: _rate(row) for row in many if row["pieces"] == most}
    if not rates:
        samples.rows("copy-engine", way="h2d", pieces="more than 1")
    sizes = sorted(rates)
    return {
        "piece_bytes": [int(size) for size in sizes], "bytes_per_s": [rounded(rates[size]) for size in sizes],
        "source": f"one batched call of {most} random pieces up, its submission counted", "basis": "measured",
    }  # fmt: skip
