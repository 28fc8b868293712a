"""What an older campaign measured of copies beside decode products, and the profile that was fitted to it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile

TOKENS = (16, 64, 256)
#: One process on one H200; `python -m benchmarks.gpu.gather`.
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-gather-h200.json"


#: The H200 as it was entered by hand, from campaigns that replayed short graphs: what these were fitted to, laws are
#: held against. Round numbers, which no calibration changes.
BY_HAND = Path(__file__).parent / "h200_by_hand.toml"


@functools.cache
def h200() -> GpuProfile:
    profile = load_profile(BY_HAND)
    assert isinstance(profile, GpuProfile)
    return profile


def measured() -> list[dict[str, float]]:
    """Rows of the results: the copy engine, and copies of the shipped kernel in bf16 as it is set."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return [row for row in rows if row["what"] == "beside" and row["dtype"] == "bfloat16" and not row["warps"]]
