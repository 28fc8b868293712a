"""Predictions by formula, so that grids, folders and crossovers are tested without simulating anything."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.whatif.scenario import Scenario

Speed = Callable[[Scenario], float]


def short_of(need: int = 200, free: int = 100) -> CapacityError:
    return CapacityError(tier="host", need=need, free=free, unit="bytes", hint="lower the batch")


def prediction(tokens_per_s: float, problem: CapacityError | None = None, device: float = 1e9) -> Any:
    """What Scenario.predict returns, as far as a row looks at it."""
    need = SimpleNamespace(device=device, pools=device / 4, host=2e9)
    return SimpleNamespace(
        need=need, problem=problem, feasible=problem is None, tokens_per_s=tokens_per_s, step_s=1 / tokens_per_s,
        transfer_s=0.5 / tokens_per_s, hidden_s=0.2 / tokens_per_s, exposed_s=0.3 / tokens_per_s, bound="pcie",
        misses=10.0, late_blocks=1.0, provenance={},
    )  # fmt: skip


def usual(scenario: Scenario) -> Any:
    """Faster with the link and the batch; a batch above 32 does not fit, budget 97 is impossible."""
    if scenario.budget == 97:
        raise ConfigError("budget=97 is not liked here")
    problem = short_of() if scenario.batch > 32 else None
    better = 1.5 if scenario.runtime == "offload-prefetch" else 1.0
    return prediction(
        better * (scenario.link_gb_s or 50.0) * scenario.batch, problem, device=1e9 + 1e8 * scenario.batch
    )
