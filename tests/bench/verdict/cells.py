"""Judged cells by hand, for the tests of a report."""

from __future__ import annotations

from typing import Any

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.verdict.judged import Judged, Verdict
from sparda_core.simulator.step_models import FULL, LONGER, STEP_MODELS


def judged(
    *, error: float = 0.0, measured: float = 0.01, simple: float | None = None, tier: str = "interpolated",
    stratum: str = "compute", replay: float | None = None, cell: dict[str, Any] | None = None, **rest: Any,
) -> Judged:  # fmt: skip
    """A cell whose predicted tokens/s are off by `error`, max(copy, compute)'s by `simple`."""
    named = {"selector": "forecast", "runtime": "offload-prefetch", "batch": 4, "context": 1 << 17, **(cell or {})}
    made = ValidationCell(**named)
    models = dict.fromkeys(STEP_MODELS, measured / (1 + error))
    models[LONGER] = measured / (1 + (error if simple is None else simple))
    return Judged(
        key=rest.pop("key", made.key), tier=tier, stratum=stratum, cell=made.to_plain(), measured_s=measured,
        drawn_s=models[FULL], models=models, replayed_s=None if replay is None else measured / (1 + replay), **rest,
    )  # fmt: skip


def verdict(*cells: Judged, device: str = "cuda") -> Verdict:
    profile = {"name": "round", "digest": "0123456789ab", "date": "2026-11-30"}
    return Verdict(title="cells by hand", device=device, cells=cells, profile=profile)
