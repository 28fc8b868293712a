"""The copy kernel's size follows from the profile of the GPU at hand, or says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.errors import ProfileError
from sparda_core.kernels.gather.runs import check_ctas, check_in_flight
from sparda_core.runtimes.gpu.options import MEASURED, CopySize
from sparda_core.simulator.copy_default import ENOUGH, NAMED, copy_default, copy_of, profile_of
from sparda_core.simulator.cpu import KindCost
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile, profile_names, profile_toml, save_profile
from tests.simulator.scenes import cpu

#: Names as drivers give them.
DEVICES = {
    "NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA A100-SXM4-80GB": "a100-sxm", "NVIDIA B200": "b200", "NVIDIA GH200 480GB": "gh200", "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA GeForce RTX 5090": "rtx-5090",
}  # fmt: skip


def test_every_shipped_profile_of_a_gpu_is_found_by_a_devices_name() -> None:
    assert NAMED.keys() == set(profile_names())
    assert {profile_of(device) for device in DEVICES} == set(profile_names())
    assert {device: profile_of(device) for device in DEVICES} == DEVICES


@pytest.mark.parametrize(
    "device", ["NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-PCIE-40GB",
               "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "Tesla T4", ""],
)  # fmt: skip
def test_a_gpu_without_a_profile_takes_the_h200s_and_says_so(device: str) -> None:
    assert profile_of(device) is None
    found = copy_default(device)
    assert (found.profile, found.own) == ("h200", False)
    assert found.source == "by the profile h200 (measured): this GPU has none of its own"
    assert copy_default("NVIDIA H200").source == "by the profile h200 (measured)"


@pytest.mark.parametrize("name", profile_names())
def test_a_default_is_the_fewest_thread_blocks_that_keep_the_link_busy_beside_compute(name: str) -> None:
    found, profile = copy_of(name), load_profile(name)
    assert isinstance(profile, GpuProfile)
    assert profile.uva is not None
    check_ctas(found.ctas)
    check_in_flight(found.in_flight_bytes)
    ceiling = profile.uva.ceiling_bytes_per_s.value
    assert profile.uva.bytes_per_s(found.ctas, beside=True) >= ENOUGH * ceiling
    assert found.ctas == 1 or profile.uva.bytes_per_s(found.ctas - 1, beside=True) < ENOUGH * ceiling


def test_what_a_session_takes_by_itself_is_what_the_h200s_profile_says() -> None:
    found = copy_of("h200")
    assert CopySize(ctas=found.ctas, in_flight_bytes=found.in_flight_bytes) == MEASURED
    assert copy_of("a100-sxm").ctas < copy_of("gh200").ctas  # a link of half the speed, and one of seven times


def test_a_profile_that_was_measured_anew_changes_the_default(tmp_path: Path) -> None:
    profile = load_profile("h200")
    assert isinstance(profile, GpuProfile)
    assert profile.uva is not None
    text = profile_toml(profile).replace(f"value = {profile.uva.round_trip_s.value}", "value = 8e-06")
    assert "value = 8e-06" in text
    (tmp_path / "slow.toml").write_text(text)
    assert copy_of(str(tmp_path / "slow.toml")).ctas > copy_of("h200").ctas


def test_a_profile_that_knows_no_gather_is_refused(tmp_path: Path) -> None:
    save_profile(cpu({"decode/mlp": KindCost(fixed_s=1e-6, driver="flops", per_unit_s=1e-9)}), tmp_path / "cpu.toml")
    with pytest.raises(ProfileError, match=r"nothing of engine 'uva'; give copy_ctas and copy_in_flight_bytes"):
        copy_of(str(tmp_path / "cpu.toml"))
