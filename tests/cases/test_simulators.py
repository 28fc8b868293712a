"""Simulators and planners: the kinds of fault that others met, and what happens here (docs/cases.md, F)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.errors import ProfileError
from sparda_core.simulator.lint import lint
from sparda_core.simulator.profile_file import load_profile, profile_names
from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", profile_names())
def test_a_link_a_hundred_times_too_fast_is_refused_whatever_the_machine(name: str) -> None:
    """12,500 GB/s would make offload free; the bound is what lanes and generation carry."""
    profile: Any = load_profile(name)
    link = profile.link
    rate = link.h2d_bytes_per_s
    fast = attrs.evolve(link, h2d_bytes_per_s=rate.with_value(rate.value * 100, "a slip of two digits"))
    assert any("h2d" in finding for finding in lint(attrs.evolve(profile, link=fast)))


def test_an_asked_for_link_beyond_its_generation_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"exceeds .* the payload of PCIe"):
        Scenario(link_gb_s=9000.0).predict()


@pytest.mark.parametrize("selector", ["query", "infinigen", "forecast"])
@pytest.mark.parametrize("runtime", ["offload-sync", "offload-prefetch"])
@pytest.mark.parametrize("batch", [1, 8, 24])
def test_half_the_link_never_shortens_a_step_and_lengthens_one_that_waits(
    selector: str, runtime: str, batch: int
) -> None:
    if (selector, runtime) == ("query", "offload-prefetch"):
        return  # it knows its blocks no layer early, and is refused
    point = Scenario(selector=selector, runtime=runtime, batch=batch, churn=0.1, link_gb_s=40.0)
    whole = point.predict().step_s
    half = attrs.evolve(point, link_gb_s=20.0).predict().step_s
    assert half >= whole
    resident = attrs.evolve(point, runtime="resident", link_gb_s=None).predict().step_s
    if whole > 1.05 * resident:
        assert half > 1.05 * whole


@pytest.mark.parametrize("churn", [0.02, 0.1])
def test_more_misses_reach_the_time_of_a_step(churn: float) -> None:
    """A hit rate that changed without moving the latency was the fault: work fixed before the reload."""
    point = Scenario(selector="query", runtime="offload-sync", batch=16, churn=churn)
    assert attrs.evolve(point, churn=2 * churn).predict().step_s > 1.02 * point.predict().step_s


def test_the_page_says_what_this_simulator_has_that_others_lack() -> None:
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    part = text.partition("## Beside other simulators")[2].partition("\n## ")[0]
    assert re.search(r"aisimulate", part)
    assert re.search(r"inference-sim", part)
