"""Profile lint: numbers that physics or a device's own report forbid, each met in a published profile."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.quantity import Basis

#: Payload of 16 lanes one way at 512-byte packets, 24 bytes of overhead each; bytes/s by PCIe generation.
LINK_CEILING_BYTES_PER_S = {3: 15.0e9, 4: 30.1e9, 5: 60.2e9, 6: 114.0e9}
#: Dense bf16 FLOP/s and device memory bytes/s on data sheets, by a word in the profile's name.
DATASHEET = {
    "h100-pcie": (756.5e12, 2.0e12),
    "h100": (989.5e12, 3.35e12),
    "h200": (989.5e12, 4.8e12),
    "gh200": (989.5e12, 4.0e12),
    "a100": (312e12, 2.04e12),
    "b200": (2250e12, 8.0e12),
    "gb200": (2500e12, 8.0e12),
    "rtx-4090": (165.2e12, 1.008e12),
    "rtx-5090": (209.5e12, 1.792e12),
    "l40s": (362.05e12, 0.864e12),
}
MIB = 2**20


def lint(profile: Profile) -> tuple[str, ...]:
    """What is wrong with a profile, in words; empty when nothing is."""
    return tuple(_gpu_findings(profile)) if isinstance(profile, GpuProfile) else ()


def _gpu_findings(profile: GpuProfile) -> Iterator[str]:
    yield from _not_zero(profile)
    yield from _peaks(profile)
    yield from _capacities(profile)
    yield from _links(profile)
    launch = profile.launch
    if launch.graph_s.value > launch.eager_s.value:
        yield f"launch.graph_s={launch.graph_s.value} must be <= launch.eager_s={launch.eager_s.value}"


def _not_zero(profile: GpuProfile) -> Iterator[str]:
    engines = (profile.uva, profile.copy_engine, profile.cpu_gather)
    for section in (profile.memory, profile.compute, profile.link, *engines):
        if section is None:
            continue
        for field in attrs.fields(type(section)):
            value = getattr(getattr(section, field.name), "value", 1.0)
            if value == 0 and field.metadata.get("unit") != "s" and field.name != "reserved_bytes":
                yield f"{field.name}=0 must be > 0"


def _peaks(profile: GpuProfile) -> Iterator[str]:
    """A sparse peak used as dense doubles everything that is compute-bound."""
    name = next((known for known in sorted(DATASHEET, key=len, reverse=True) if known in profile.name), None)
    memory, flop_per_s = profile.memory, profile.compute.flop_per_s.value
    if name is not None:
        peak, hbm = DATASHEET[name]
        if flop_per_s > peak:
            sparse = " (the peak with structured sparsity?)" if flop_per_s > 1.8 * peak else ""
            yield f"compute.flop_per_s={flop_per_s:g} exceeds {peak:g}, the dense bf16 peak of {name}{sparse}"
        if memory.hbm_bytes_per_s.value > hbm * 1.001:
            yield f"memory.hbm_bytes_per_s={memory.hbm_bytes_per_s.value:g} exceeds {hbm:g}, the data sheet of {name}"
    if memory.kernel_bytes_per_s.value > memory.hbm_bytes_per_s.value:
        yield "memory.kernel_bytes_per_s must be <= memory.hbm_bytes_per_s: one kernel draws no more than all"


def _capacities(profile: GpuProfile) -> Iterator[str]:
    """Vendors' gigabytes are not one unit: a device reports whole mebibytes."""
    for name in ("hbm_bytes", "host_bytes"):
        quantity = getattr(profile.memory, name)
        if 0 < quantity.value < 1e8:
            yield f"memory.{name}={quantity.value:g} bytes is less than any such memory: given in GB or MiB?"
        elif quantity.basis == Basis.MEASURED and quantity.value % MIB:
            yield (
                f"memory.{name}={quantity.value:.0f} is marked measured but is no whole number of MiB, "
                "as devices report: give the device's own figure, or mark it datasheet"
            )
    if profile.memory.reserved_bytes.value >= profile.memory.hbm_bytes.value:
        yield "memory.reserved_bytes must be < memory.hbm_bytes"


def _links(profile: GpuProfile) -> Iterator[str]:
    link = profile.link
    generation, lanes = link.generation.value, link.lanes.value
    one_way = {"link.h2d_bytes_per_s": link.h2d_bytes_per_s.value, "link.d2h_bytes_per_s": link.d2h_bytes_per_s.value}
    if generation not in LINK_CEILING_BYTES_PER_S:
        yield f"link.generation={generation:g} is unknown; known: {', '.join(map(str, LINK_CEILING_BYTES_PER_S))}"
    elif lanes not in (1, 2, 4, 8, 16):
        yield f"link.lanes={lanes:g} must be 1, 2, 4, 8 or 16"
    else:
        ceiling = LINK_CEILING_BYTES_PER_S[int(generation)] * lanes / 16
        for name, rate in one_way.items():
            if rate > ceiling:
                yield f"{name}={rate:g} exceeds {ceiling:g}, the payload of PCIe {generation:g} x{lanes:g} one way"
    if link.both_ways_bytes_per_s.value > min(one_way.values()):
        yield "link.both_ways_bytes_per_s is each way with both busy: it must be <= either way alone"
    if profile.uva and profile.uva.ceiling_bytes_per_s.value > link.h2d_bytes_per_s.value:
        yield "uva.ceiling_bytes_per_s must be <= link.h2d_bytes_per_s"
    if profile.copy_engine and profile.copy_engine.whole_bytes_per_s.value > link.h2d_bytes_per_s.value * 1.001:
        yield "copy_engine.whole_bytes_per_s must be <= link.h2d_bytes_per_s"
