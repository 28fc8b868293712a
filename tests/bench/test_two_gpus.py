"""The script that measures two GPUs of one host: what counts as together, and what the simulator is asked."""

from __future__ import annotations

import json

import attrs
import pytest

from benchmarks.gpu.shared_host import CASES, Case, predicted_gb_s
from benchmarks.gpu.two_gpus import rates, turns
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile
from tests.house.tree import ROOT
from tests.simulator.beside import h200

UP, DOWN, BOTH, FEW, MANY, GATHER, _, HOST = CASES


KEPT = ROOT / "benchmarks" / "results" / "2026-11-30-two-gpus-h200.json"


def with_host(bytes_per_s: float) -> GpuProfile:
    memory = h200().memory
    wide = attrs.evolve(memory.host_bytes_per_s, value=bytes_per_s)
    return attrs.evolve(h200(), memory=attrs.evolve(memory, host_bytes_per_s=wide))


def test_only_what_ran_while_both_were_at_work_counts() -> None:
    first = [(0.0, 1.0, 9e9, 1.0), (1.0, 2.0, 5e9, 1.0), (2.0, 3.0, 6e9, 1.0), (3.0, 4.5, 7e9, 1.0)]
    second = [(0.5, 4.0, 2e9, 1.0)]
    assert rates([first, second]) == [5.5, 2.0]  # of the first: those from 1 to 2 and from 2 to 3
    assert rates([first, []]) == [6.5, None]
    assert rates([first[:1], [(0.9, 2.0, 1e9, 1.0)]]) == [None, None]


def test_every_case_runs_alone_on_each_gpu_and_on_both() -> None:
    done = turns()
    for case in CASES:
        assert {(case, None), (None, case), (case, case)} <= set(done)
    assert all(a != b for a, b in done[3 * len(CASES) :])


def test_two_gpus_are_predicted_to_share_what_their_host_memory_gives() -> None:
    wide, narrow = with_host(1e12), with_host(80e9)
    link = wide.link.h2d_bytes_per_s.value / 1e9
    for case, alone in ((UP, link), (DOWN, wide.link.d2h_bytes_per_s.value / 1e9)):
        assert predicted_gb_s(case, wide, 1) == pytest.approx(alone, rel=0.01)
        assert predicted_gb_s(case, wide, 2) == pytest.approx(alone, rel=0.01)
        assert predicted_gb_s(case, narrow, 1) == pytest.approx(alone, rel=0.01)
        assert predicted_gb_s(case, narrow, 2) == pytest.approx(40, rel=0.01)
    assert predicted_gb_s(BOTH, wide, 2) == pytest.approx(wide.link.both_ways_bytes_per_s.value / 1e9, rel=0.01)
    assert predicted_gb_s(BOTH, narrow, 2) == pytest.approx(20, rel=0.01)
    assert predicted_gb_s(FEW, narrow, 2) == pytest.approx(40, rel=0.01)
    assert predicted_gb_s(MANY, wide, 1) == predicted_gb_s(MANY, wide, 2)


def test_a_host_gather_is_predicted_by_what_its_threads_reach_or_their_share() -> None:
    law = h200().cpu_gather
    assert law is not None
    assert predicted_gb_s(GATHER, with_host(1e12), 2) == pytest.approx(law.gather_bytes_per_s.value / 1e9)
    assert predicted_gb_s(GATHER, with_host(26e9), 2) == pytest.approx(10)  # by two, 1.3 times each
    assert predicted_gb_s(HOST, h200(), 2) is None


def test_a_case_says_what_it_is() -> None:
    assert [str(case) for case in (UP, FEW, GATHER)] == ["copy engine up", "uva 2 x 128 KiB", "host gather, 4 threads"]
    assert len({str(case) for case in CASES}) == len(CASES)
    assert str(Case(way="down")) == "copy engine down"


def test_copies_of_one_gpu_and_of_two_are_predicted_as_they_were_measured() -> None:
    """Both ways on both is what the profile's host memory is from; all others could be wrong."""
    profile, kept = load_profile("h200"), json.loads(KEPT.read_text())
    assert isinstance(profile, GpuProfile)
    cases, looked_at = {str(case): case for case in CASES}, 0
    for row in kept["rows"]:
        names = [name for name in row["does"] if name]
        if len(set(names)) > 1 or names[0].startswith("host"):
            continue
        says = predicted_gb_s(cases[names[0]], profile, len(names))
        for measured in row["gb_s"]:
            if measured is not None:
                assert says == pytest.approx(measured, rel=0.015), row["does"]  # the profile is another machine's
                looked_at += 1
    assert looked_at == 5 * 4


def test_hosts_gathers_share_what_the_profile_says() -> None:
    """Two processes that gather with threads enough, and nothing else in their way."""
    profile, kept = load_profile("h200"), json.loads(KEPT.read_text())
    assert isinstance(profile, GpuProfile)
    assert profile.cpu_gather is not None
    law = profile.cpu_gather
    fast = attrs.evolve(law, gather_bytes_per_s=attrs.evolve(law.gather_bytes_per_s, value=1e12))
    says = predicted_gb_s(GATHER, attrs.evolve(profile, cpu_gather=fast), 2)
    (row,) = [row for row in kept["rows"] if row["does"] == ["host gather, 16 threads"] * 2]
    assert says == pytest.approx(sum(row["gb_s"]) / 2, rel=0.03)
