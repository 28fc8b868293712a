"""Profile lint: numbers that physics or a device's own report forbid, each met in a published profile."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.quantity import Basis, Quantity

MIB, GIB = 2**20, 2**30


@attrs.frozen
class Sheet:
    """A data sheet: dense bf16 FLOP/s, device memory bytes/s, its size in the vendor's GB, SMs (0: not known)."""

    flop_per_s: float
    hbm_bytes_per_s: float
    memory_gb: float
    sms: int


#: By a word in the profile's name; of several words the longest counts (`gh200` holds `h200`).
DATASHEET = {
    "h100-pcie": Sheet(756.5e12, 2.0e12, 80, 114),
    "h100": Sheet(989.5e12, 3.35e12, 80, 132),
    "h200": Sheet(989.5e12, 4.8e12, 141, 132),
    "gh200": Sheet(989.5e12, 4.0e12, 96, 132),
    "a100": Sheet(312e12, 2.04e12, 80, 108),
    "b200": Sheet(2250e12, 8.0e12, 192, 148),
    "gb200": Sheet(2500e12, 8.0e12, 192, 0),
    "rtx-4090": Sheet(165.2e12, 1.008e12, 24, 128),
    "rtx-5090": Sheet(209.5e12, 1.792e12, 32, 170),
    "l40s": Sheet(362.05e12, 0.864e12, 48, 142),
    "rtx-pro-6000": Sheet(467.8e12, 1.792e12, 96, 188),
}


def lint(profile: Profile) -> tuple[str, ...]:
    """What is wrong with a profile, in words; empty when nothing is."""
    return tuple(_gpu_findings(profile)) if isinstance(profile, GpuProfile) else ()


def _gpu_findings(profile: GpuProfile) -> Iterator[str]:
    yield from _plausible(profile)
    yield from _peaks(profile)
    yield from _capacities(profile)
    yield from _grids(profile)
    yield from _links(profile)
    launch = profile.launch
    if launch.graph_s.value > launch.eager_s.value:
        yield f"launch.graph_s={launch.graph_s.value} must be <= launch.eager_s={launch.eager_s.value}"


def _plausible(profile: GpuProfile) -> Iterator[str]:
    """A number far outside what any device has is in another unit than its field's."""
    for part in (field.name for field in attrs.fields(GpuProfile)):
        section = getattr(profile, part)
        if not attrs.has(type(section)):
            continue
        for field in attrs.fields(type(section)):
            quantity = getattr(section, field.name)
            if not isinstance(quantity, Quantity):
                continue
            (low, high), value, name = field.metadata["plausible"], quantity.value, f"{part}.{field.name}"
            if value == 0 and not field.metadata.get("zero"):
                yield f"{name}=0 must be > 0"
            elif value and not low <= value <= high:
                yield (
                    f"{name}={value:g} {quantity.unit} is beyond any such device ({low:g} to {high:g}): "
                    f"given in another unit than {quantity.unit}?"
                )


def _peaks(profile: GpuProfile) -> Iterator[str]:
    """A sparse peak used as dense doubles everything that is compute-bound."""
    name = next((known for known in sorted(DATASHEET, key=len, reverse=True) if known in profile.name), None)
    memory, flop_per_s = profile.memory, profile.compute.flop_per_s.value
    if name is not None:
        sheet = DATASHEET[name]
        if flop_per_s > sheet.flop_per_s:
            sparse = " (the peak with structured sparsity?)" if flop_per_s > 1.8 * sheet.flop_per_s else ""
            peak = f"{sheet.flop_per_s:g}, the dense bf16 peak of {name}"
            yield f"compute.flop_per_s={flop_per_s:g} exceeds {peak}{sparse}"
        if memory.hbm_bytes_per_s.value > sheet.hbm_bytes_per_s * 1.001:
            yield (
                f"memory.hbm_bytes_per_s={memory.hbm_bytes_per_s.value:g} exceeds {sheet.hbm_bytes_per_s:g}, "
                f"the data sheet of {name}"
            )
        # The vendor's GB may be 2^30 bytes, never more.
        if memory.hbm_bytes.value > sheet.memory_gb * GIB:
            yield f"memory.hbm_bytes={memory.hbm_bytes.value:g} exceeds the {sheet.memory_gb:g} GB of {name}"
        if sheet.sms and profile.compute.sms.value > sheet.sms:
            yield f"compute.sms={profile.compute.sms.value:g} exceeds {sheet.sms}, the SMs of {name}"
    if memory.kernel_bytes_per_s.value > memory.hbm_bytes_per_s.value:
        yield "memory.kernel_bytes_per_s must be <= memory.hbm_bytes_per_s: one kernel draws no more than all"


def _capacities(profile: GpuProfile) -> Iterator[str]:
    """Vendors' gigabytes are not one unit: a device reports whole mebibytes."""
    for name in ("hbm_bytes", "host_bytes"):
        quantity = getattr(profile.memory, name)
        if quantity.basis == Basis.MEASURED and quantity.value % MIB:
            yield (
                f"memory.{name}={quantity.value:.0f} is marked measured but is no whole number of MiB, "
                "as devices report: give the device's own figure, or mark it datasheet"
            )
    if profile.memory.reserved_bytes.value >= profile.memory.hbm_bytes.value:
        yield "memory.reserved_bytes must be < memory.hbm_bytes"


def _grids(profile: GpuProfile) -> Iterator[str]:
    compute = profile.compute
    for name in ("sms", "product_ctas", "product_cluster"):
        value = getattr(compute, name).value
        if value != int(value):
            yield f"compute.{name}={value:g} must be a whole number"
    cluster = compute.product_cluster.value
    if cluster > 1 and cluster % 2:
        yield f"compute.product_cluster={cluster:g} must be 1 or even: clusters lie on pairs of SMs"
    if compute.product_ctas.value > compute.sms.value:
        yield f"compute.product_ctas={compute.product_ctas.value:g} must be <= compute.sms={compute.sms.value:g}"


def _links(profile: GpuProfile) -> Iterator[str]:
    link = profile.link
    one_way = {"link.h2d_bytes_per_s": link.h2d_bytes_per_s.value, "link.d2h_bytes_per_s": link.d2h_bytes_per_s.value}
    try:
        ceiling = link.ceiling_bytes_per_s
    except ProfileError as wrong:
        yield str(wrong)
    else:
        for name, rate in one_way.items():
            if rate > ceiling:
                yield f"{name}={rate:g} exceeds {ceiling:g}, the payload of {link.title} one way"
    if link.both_ways_bytes_per_s.value > min(one_way.values()):
        yield "link.both_ways_bytes_per_s is each way with both busy: it must be <= either way alone"
    if profile.memory.host_bytes_per_s.value < link.h2d_bytes_per_s.value:
        yield "memory.host_bytes_per_s must be >= link.h2d_bytes_per_s: the link cannot be fed faster than that"
    yield from _both_ways(profile)
    yield from _engines(profile)


def _both_ways(profile: GpuProfile) -> Iterator[str]:
    """Of two numbers that were measured; a link may be sold with more than a memory has."""
    host, both = profile.memory.host_bytes_per_s, profile.link.both_ways_bytes_per_s
    # Of one GPU both are of the same copies: each is rounded by itself.
    if {host.basis, both.basis} == {Basis.MEASURED} and host.value * 1.001 < 2 * both.value:
        yield "memory.host_bytes_per_s must be >= 2 x link.both_ways_bytes_per_s: one GPU was seen to move that"


def _engines(profile: GpuProfile) -> Iterator[str]:
    link, uva, engine = profile.link, profile.uva, profile.copy_engine
    if uva and uva.ceiling_bytes_per_s.value > link.h2d_bytes_per_s.value * 1.001:
        yield "uva.ceiling_bytes_per_s must be <= link.h2d_bytes_per_s"
    if uva and uva.repeated_round_trip_s.value > uva.round_trip_s.value:
        yield "uva.repeated_round_trip_s must be <= uva.round_trip_s: warm translations are no slower"
    if uva and uva.beside_bytes_per_s.value > uva.cta_bytes_per_s.value:
        yield "uva.beside_bytes_per_s must be <= uva.cta_bytes_per_s: compute beside it speeds no copy up"
    if uva and uva.late_bytes_per_s.value > uva.beside_bytes_per_s.value:
        yield "uva.late_bytes_per_s must be <= uva.beside_bytes_per_s: SMs that a kernel left are no better than any"
    if uva and uva.crowded_bytes_per_s and uva.crowded_bytes_per_s.value > uva.beside_bytes_per_s.value:
        yield "uva.crowded_bytes_per_s must be <= uva.beside_bytes_per_s: attention speeds no copy up"
    if engine and engine.whole_bytes_per_s.value > link.h2d_bytes_per_s.value * 1.001:
        yield "copy_engine.whole_bytes_per_s must be <= link.h2d_bytes_per_s"
