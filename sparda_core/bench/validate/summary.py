"""Errors of a run by tier and stratum. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparda_core.bench.validate.record import DRAWN, REPLAYED, STRATA, TIERS, Record

Row = dict[str, Any]


def ninth_decile(values: Sequence[float]) -> float:
    """What nine of ten values do not exceed: between two of them where it must be, in proportion."""
    return float(np.quantile(values, 0.9))


def errors(records: Iterable[Record]) -> list[Row]:
    """One row for each tier and way, over all strata and by stratum: cells, median, p90 and largest absolute error of
    tokens/s, signed mean, and the machine's own median repeatability. Cells without a prediction are counted apart.
    """
    rows = []
    every = [record for record in records if record.measured is not None]
    for tier in TIERS:
        for stratum in (None, *STRATA):
            chosen = [r for r in every if r.tier == tier and stratum in (None, r.stratum)]
            for way in (REPLAYED, DRAWN):
                found = [error for record in chosen if (error := record.error(way)) is not None]
                if found:
                    rows.append({"tier": tier, "stratum": stratum, "way": way, **_statistics(found, chosen)})
    return rows


def _statistics(found: Sequence[float], records: Sequence[Record]) -> Row:
    sizes = [abs(error) for error in found]
    repeated = [r.measured.repeatability for r in records if r.measured is not None and r.measured.repeatability]
    return {
        "cells": len(found), "without": len(records) - len(found), "median": statistics.median(sizes),
        "p90": ninth_decile(sizes), "largest": max(sizes), "signed_mean": statistics.mean(found),
        "repeatability": statistics.median(repeated) if repeated else None,
    }  # fmt: skip
