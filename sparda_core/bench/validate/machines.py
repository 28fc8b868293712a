"""The profile that cells are predicted with. Torch-free."""

from __future__ import annotations

from pathlib import Path

from sparda_core.errors import ConfigError
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile

#: Of cells of a GPU, unless another is named; of those of a CPU: it is measured with them, and lies beside them.
GPU_PROFILE, CPU_PROFILE = "h200", "cpu-profile.toml"
#: Where a cell ran -> the kind of profile that speaks of it.
_KINDS = {"cuda": "gpu", "cpu": "cpu"}


def profile_name(device: str, place: Path, asked: str | None) -> str:
    """Name or file of the profile for cells of a device.

    place  the folder, or the file, that holds the cells
    asked  the profile that was named; None: the usual one
    Raises ConfigError where cells of a CPU have none beside them.
    """
    if asked is not None:
        return asked
    if device != "cpu":
        return GPU_PROFILE
    own = (place if place.is_dir() else place.parent) / CPU_PROFILE
    if not own.exists():
        raise ConfigError(f"{place} holds cells of a CPU and no {CPU_PROFILE} beside them; name one by --profile")
    return str(own)


def profile_for(device: str, name: str) -> Profile:
    """The profile; raises UnknownNameError, ProfileError, and ConfigError for one of another kind of machine."""
    profile = load_profile(name)
    if profile.device != _KINDS[device]:
        raise ConfigError(
            f"profile={name!r} is of a {profile.device.upper()}, and the cells are of a {_KINDS[device].upper()}: "
            f"name a profile of a {_KINDS[device].upper()}, or leave --profile out"
        )
    return profile
