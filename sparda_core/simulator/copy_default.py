"""How many thread blocks copy, and how much each keeps in flight, by a GPU's measured profile. Torch-free."""

from __future__ import annotations

import functools
import re

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.derive import REFERENCE
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_parts import Uva
from sparda_core.simulator.profile_file import load_profile

#: Shipped profile -> words that the device's own name must hold ("NVIDIA H100 80GB HBM3" is the SXM one).
NAMED = {
    "a100-sxm": ("a100", "sxm4"), "b200": ("b200",), "gh200": ("gh200",), "h100-pcie": ("h100", "pcie"),
    "h100-sxm": ("h100", "hbm3"), "h200": ("h200",), "l40s": ("l40s",), "rtx-4090": ("rtx", "4090"),
    "rtx-5090": ("rtx", "5090"),
}  # fmt: skip
#: Words of devices that share a name with a profile's and little else: another link, other memory, part of a GPU.
OTHER = frozenset({"nvl", "laptop", "mig", "d"})
#: Beside compute, more thread blocks than reach this share of the ceiling cost more than they bring: each further one
#: takes a TPC from the kernels. On an H200 one reaches 65 %, two 94 % (33.2 and 47.7 of 50.7 GB/s at 64 rows).
ENOUGH = 0.9
MOST_CTAS = 1024


@attrs.frozen(kw_only=True)
class CopyDefault:
    """Size of the copy kernel of engine "uva" on a GPU.

    profile  name of the profile that it follows from
    own      whether that is this GPU's own; else it is the H200's, the one GPU that was measured
    basis    what the profile's rates rest on: "measured", "derived" or "prior"
    """

    ctas: int
    in_flight_bytes: int
    profile: str
    own: bool
    basis: str

    @property
    def source(self) -> str:
        """In words."""
        whose = f"by the profile {self.profile} ({self.basis})"
        return whose if self.own else f"{whose}: this GPU has none of its own"


def profile_of(device: str) -> str | None:
    """Shipped profile of a GPU by the name that its driver gives it, such as "NVIDIA H200"; None without one."""
    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    if words & OTHER:
        return None
    return next((name for name, wanted in NAMED.items() if words.issuperset(wanted)), None)


def copy_default(device: str) -> CopyDefault:
    """The copy kernel's size on a GPU of this name; the H200's for a GPU without a profile, which it then says."""
    own = profile_of(device)
    return copy_of(own or REFERENCE, own=own is not None)


@functools.cache
def copy_of(name: str, *, own: bool = True) -> CopyDefault:
    """The fewest thread blocks that reach ENOUGH of the profile's ceiling beside compute, lists never seen before.

    Raises ProfileError for a profile that has no `uva` section.
    """
    profile = load_profile(name)
    if not isinstance(profile, GpuProfile) or profile.uva is None:
        raise ProfileError(f"profile {name!r} says nothing of engine 'uva'; give copy_ctas and copy_in_flight_bytes")
    return CopyDefault(
        ctas=fewest_ctas(profile.uva), in_flight_bytes=int(profile.uva.in_flight_bytes.value), profile=name, own=own,
        basis=str(profile.uva.ceiling_bytes_per_s.basis),
    )  # fmt: skip


def fewest_ctas(uva: Uva) -> int:
    """The fewest thread blocks that reach ENOUGH of the ceiling beside compute."""
    ceiling = uva.ceiling_bytes_per_s.value
    return next(n for n in range(1, MOST_CTAS + 1) if enough(uva.bytes_per_s(n, beside=True), ceiling, n))


def enough(bytes_per_s: float, ceiling_bytes_per_s: float, ctas: int) -> bool:
    """Whether more thread blocks than `ctas` are not worth it, or not to be had."""
    return bytes_per_s >= ENOUGH * ceiling_bytes_per_s or ctas == MOST_CTAS
