"""Gains by lookahead that were measured, beside what is predicted of the same steps. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from sparda_core.bench.decode.cell import Cell
from sparda_core.whatif.scenario import Scenario

_LOAD = ("selector", "runtime", "batch", "context", "churn", "policy", "slots")


@attrs.frozen(kw_only=True)
class MeasuredGain:
    """Rows of one load without and with lookahead, and what is predicted of their ratio."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    predicted: float

    @property
    def gain(self) -> float:
        """Times as fast, measured."""
        return float(self.before["step_s"] / self.after["step_s"])


def measured_gains(run: Mapping[str, Any]) -> list[MeasuredGain]:
    """Every load of a run that was measured both ways; one selector, one pool, one graph a step."""
    plain = [row for row in run["rows"] if "step_s" in row and row["selector"] == "forecast" and _plain(row)]
    sides = {
        runtime: {tuple(row[name] for name in _LOAD[2:]): row for row in plain if row["runtime"] == runtime}
        for runtime in ("offload-sync", "offload-prefetch")
    }
    found = [
        MeasuredGain(before=before, after=after, predicted=_predicted_s(before, run) / _predicted_s(after, run))
        for load_, after in sides["offload-prefetch"].items()
        if (before := sides["offload-sync"].get(load_)) is not None
    ]
    return sorted(found, key=lambda one: (-one.before["context"], one.before["slots"], one.before["batch"]))


def _plain(row: Mapping[str, Any]) -> bool:
    """Whether it differs from the usual cell in its load alone."""
    return Cell.of(row) == Cell(**{name: row[name] for name in _LOAD})


def _predicted_s(row: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    given = {name: row[name] for name in ("selector", "runtime", "batch", "context", "policy")}
    recording = run["settings"].get("recording")
    misses = {"recording": recording} if recording else {"locality": run["settings"]["locality"], "churn": row["churn"]}
    return Scenario(slot_factor=row["slots"], **misses, **given).predict().step_s
