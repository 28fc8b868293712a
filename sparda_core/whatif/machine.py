"""The machine of a scenario: a profile with the knobs that change it turned."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.quantity import Quantity

if TYPE_CHECKING:
    from sparda_core.whatif.scenario import Scenario

GIGA, TERA = 1e9, 1e12


def machine_of(scenario: Scenario) -> Profile:
    """The profile of a scenario; raises ProfileError or ConfigError for a knob that it cannot turn."""
    turned = {
        name: getattr(scenario, name)
        for name in ("link_gb_s", "hbm_gb_s", "tflop_s", "host_gb", "pcie", "gpus", "launches", "extrapolate")
    }
    return _machine(_key(scenario.profile), tuple(turned.items()))


def _key(name: str) -> tuple[str, int]:
    """A file is read again when it changes."""
    try:
        return name, Path(name).stat().st_mtime_ns if name.endswith(".toml") else 0
    except (OSError, ValueError):  # loading it says why
        return name, 0


@functools.lru_cache(maxsize=64)
def _machine(key: tuple[str, int], turned: tuple[tuple[str, Any], ...]) -> Profile:
    profile, knobs = _loaded(key), dict(turned)
    if knobs["pcie"] is not None:
        if not isinstance(profile, GpuProfile):
            raise _no_such("pcie", knobs["pcie"], profile)
        profile = profile.with_pcie(knobs["pcie"])
    if knobs["link_gb_s"] is not None:
        profile = profile.with_link(knobs["link_gb_s"] * GIGA)
    for name, change in (("hbm_gb_s", _hbm), ("tflop_s", _flops), ("host_gb", _host)):
        if knobs[name] is not None:
            if not isinstance(profile, GpuProfile):
                raise _no_such(name, knobs[name], profile)
            profile = change(profile, knobs[name])
    for name, usual in (("gpus", 1), ("launches", None), ("extrapolate", False)):
        if knobs[name] != usual:
            profile = _setting(profile, name, knobs[name])
    return profile


@functools.lru_cache(maxsize=16)
def _loaded(key: tuple[str, int]) -> Profile:
    return load_profile(key[0])


def _hbm(profile: GpuProfile, gb_s: float) -> GpuProfile:
    """Device memory as a whole and what one kernel draws of it, by one factor."""
    memory = profile.memory
    by = gb_s * GIGA / memory.hbm_bytes_per_s.value
    return attrs.evolve(profile, memory=attrs.evolve(
        memory, hbm_bytes_per_s=_by(memory.hbm_bytes_per_s, by), kernel_bytes_per_s=_by(memory.kernel_bytes_per_s, by),
    ))  # fmt: skip


def _flops(profile: GpuProfile, tflop_s: float) -> GpuProfile:
    compute = profile.compute
    rate = compute.flop_per_s.with_value(tflop_s * TERA, "asked for")
    return attrs.evolve(profile, compute=attrs.evolve(compute, flop_per_s=rate))


def _host(profile: GpuProfile, size_gb: float) -> GpuProfile:
    size = profile.memory.host_bytes.with_value(size_gb * GIGA, "asked for")
    return attrs.evolve(profile, memory=attrs.evolve(profile.memory, host_bytes=size))


def _by(quantity: Quantity, by: float) -> Quantity:
    return quantity.with_value(quantity.value * by, "another device memory was asked for")


def _setting(profile: Profile, name: str, value: Any) -> Profile:
    if name not in {field.name for field in attrs.fields(type(profile))}:
        raise _no_such(name, value, profile)
    return attrs.evolve(profile, **{name: value})


def _no_such(name: str, value: Any, profile: Profile) -> ConfigError:
    return ConfigError(
        f"{name}={value!r} cannot be set on profile {profile.name!r} (device {profile.device}); leave {name} out"
    )
