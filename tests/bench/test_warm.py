"""Set-up's warm-up runs every method."""

from __future__ import annotations

from sparda_core.bench.warm import warm


def test_the_warm_up_runs() -> None:
    warm()
