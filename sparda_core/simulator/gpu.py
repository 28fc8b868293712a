"""A GPU: launches, roofline of compute and device memory, SMs, and three ways to cross the host link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import attrs

from sparda_core.errors import ProfileError
from sparda_core.plan import Op, StepPlan
from sparda_core.simulator import gpu_price
from sparda_core.simulator.gpu_parts import (
    Calibration,
    Compute,
    CopyEngine,
    CpuGather,
    Launch,
    Link,
    Memory,
    Uva,
    pcie_payload,
)
from sparda_core.simulator.kernel_parts import Kernels
from sparda_core.simulator.launches import LAUNCHES, default_launches, needs_host_list
from sparda_core.simulator.profile import Grid, Price, Profile, moves
from sparda_core.simulator.quantity import Basis, Quantity
from sparda_core.simulator.sms import waves_alone
from sparda_core.work import Work

#: What one H200 was measured for (November 2026); other profiles carry its laws over, and their bounds with them.
#: Copy CTAs: 1 to 32 beside compute. Bytes in flight: 16 to 128 KiB of each, 1 MiB of all: with two and more, kernels
#: beside them all but stand still. Tokens: decode products of 1 to 256 rows,
#: and one product of 8192 cubed, which is what a chunk of prefill rests on. Blocks of a gather: 16 KiB and up
#: (random ones to 128 KiB, contiguous 64 MiB).
CALIBRATED = {
    "copy_ctas": (1.0, 32.0),
    "in_flight_bytes": (16384.0, 131072.0),
    "copy_bytes_in_flight": (0.0, float(2**20)),
    "tokens": (1.0, 256.0),
    "prefill_tokens": (1.0, 8192.0),
    "uva_piece_bytes": (16384.0, float(2**30)),
}
#: One piece of 1 GiB is the largest copy that was timed.
LARGEST_PIECE_BYTES = float(2**30)


def _launches(instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and value not in LAUNCHES:
        raise ProfileError(f"launches={value!r} must be one of: {', '.join(LAUNCHES)}")


def _gpus(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProfileError(f"gpus={value!r} must be an integer >= 1")


@attrs.frozen(kw_only=True)
class GpuProfile(Profile):
    """A GPU behind a host link. An engine whose section is missing cannot be predicted.

    Settings, which no profile file holds:
    launches     how a step reaches the device; None: as `default_launches` says for the plan's engine.
                 "graph": one CUDA graph. "segments": graphs cut at every transfer whose list the host must see.
                 "eager": the host launches every kernel, in plan order
    gpus         equal GPUs, each running the step for rows of its own; they share host memory
    extrapolate  True: price what lies outside the calibrated domain too
    """

    device: ClassVar[str] = "gpu"
    engines: ClassVar[tuple[str, ...]] = ("uva", "copy-engine", "cpu-gather")

    memory: Memory
    compute: Compute
    launch: Launch
    link: Link
    kernels: Kernels | None = None
    uva: Uva | None = None
    copy_engine: CopyEngine | None = None
    cpu_gather: CpuGather | None = None
    calibration: Calibration | None = None
    launches: str | None = attrs.field(default=None, validator=_launches, metadata={"setting": True})
    gpus: int = attrs.field(default=1, validator=_gpus, metadata={"setting": True})
    extrapolate: bool = attrs.field(default=False, metadata={"setting": True})

    def capacity(self) -> dict[str, float]:
        """FLOP/s, device memory, the link each way, host memory."""
        return {
            "flops": self.compute.flop_per_s.value,
            "hbm": self.memory.hbm_bytes_per_s.value,
            "h2d": self.link.h2d_bytes_per_s.value,
            "d2h": self.link.d2h_bytes_per_s.value,
            "host": self.memory.host_bytes_per_s.value,
        }

    @property
    def sms(self) -> int:
        """SMs; two make a TPC."""
        return int(self.compute.sms.value)

    @property
    def shared(self) -> frozenset[str]:
        """Several GPUs draw on one host memory."""
        return frozenset({"host"})

    def launches_of(self, plan: StepPlan) -> str:
        """How steps of this plan are launched: the setting, or what the plan's engine and phase allow."""
        return self.launches or default_launches(plan.engine, plan.phase)

    def check_engine(self, plan: StepPlan) -> None:
        """Also raise ProfileError where one graph is asked for and a list must reach the host in mid-step."""
        super().check_engine(plan)
        if self.launches == "graph" and needs_host_list(plan.engine) and any(gpu_price.cuts(op) for op in plan.ops):
            raise ProfileError(
                f"launches='graph' with engine={plan.engine!r}: its list must reach the host in mid-step, "
                "which one graph cannot do; use launches='segments' or 'eager'"
            )

    def domain(self) -> dict[str, tuple[float, float]]:
        """What the profile was calibrated for: name -> least, most."""
        known = dict(CALIBRATED)
        if self.copy_engine is not None:
            known["copy_engine_piece_bytes"] = (self.copy_engine.pieces.piece_bytes[0], LARGEST_PIECE_BYTES)
        return known

    def outside(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> tuple[str, ...]:
        """In words, what of an operation lies outside the calibrated domain; empty where nothing does."""
        own_in_flight = self.uva.in_flight_bytes.value if self.uva is not None else 0.0
        known, asked = self.domain(), gpu_price.coordinates(op, work, plan, tokens, own_in_flight)
        return tuple(
            f"{name}={value:g} (calibrated {known[name][0]:g} to {known[name][1]:g})"
            for name, value in asked.items()
            if name in known and not known[name][0] <= value <= known[name][1]
        )

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        """Launch gaps, then the longest of its flows.

        A compute operation takes what its kind takes whatever it moves, then draws FLOPs and device memory side by
        side; one that stays below a CTA per SM cannot use more than its SMs' share of the FLOPs.
        A transfer follows the law of the engine.
        """
        if not self.extrapolate and (outside := self.outside(op, work, plan=plan, tokens=tokens)):
            raise ProfileError(
                f"op {str(op.name)!r} is outside the calibrated domain of profile {self.name!r}: {'; '.join(outside)}; "
                "--extrapolate accepts it (extrapolate=True of a Scenario or of this profile)"
            )
        price = gpu_price.transfer_price if moves(op) else gpu_price.kernel_price
        return price(self, op, work, plan, tokens)

    def product_grid(self, tokens: int) -> Grid:
        """Grid of a matrix product by a vendor's library.

        As large for any number of tokens that was measured; beyond, one more such grid for every further
        as many tokens (a prior: tiles stay as large).
        """
        compute = self.compute
        ctas = int(compute.product_ctas.value) * -(-tokens // int(compute.wave_share.tokens[-1]))
        return Grid(ctas=ctas, cluster=int(compute.product_cluster.value))

    def wave_share(self, grid: Grid, tokens: int, product_s: float = 0.0) -> float:
        """What one more wave of a grid adds, as a share of the kernel's time alone.

        As measured for products of one wave; a grid of several waves spends an equal part of its time in each.
        product_s  that a vendor's product takes alone; 0: no such kernel
        """
        alone = waves_alone(grid, self.sms)
        if not alone:
            raise ProfileError(
                f"a cluster of {grid.cluster} thread blocks does not fit on the {self.sms} SMs of profile {self.name!r}"
            )
        return self.compute.wave_share.of(product_s, tokens) / alone

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        """A kernel waits longer for its loads the more bytes copies keep in flight, a copy beside one that crowds.

        SMs and bandwidth are resources of their own.
        """
        if mine.copies:
            return max((mine.crowded[other.crowds] for other in others if not other.copies), default=1.0)
        return 1.0 + sum(other.drag for other in others)

    @property
    def step_s(self) -> float:
        """One graph launch."""
        return self.launch.step_s.value

    @property
    def device_bytes(self) -> float:
        """Device memory."""
        return self.memory.hbm_bytes.value

    @property
    def reserved_bytes(self) -> float:
        """Context, graphs and workspaces."""
        return self.memory.reserved_bytes.value

    @property
    def host_bytes(self) -> float | None:
        """Host memory of the machine, whatever the number of its GPUs."""
        return self.memory.host_bytes.value

    def with_link(self, bytes_per_s: float) -> Self:
        """Scale the link, both ways together and the gather's ceiling to `bytes_per_s`; latencies stay.

        Raises ProfileError for a rate that no link of this generation and width carries.
        """
        if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
            raise ProfileError(f"link={bytes_per_s} bytes/s must be finite and > 0")
        ceiling = self.link.ceiling_bytes_per_s
        if bytes_per_s > ceiling:
            raise ProfileError(
                f"link={bytes_per_s:g} bytes/s exceeds {ceiling:g}, the payload of {self.link.title} one way; "
                "ask for less, or for another PCIe generation"
            )
        return self._scaled(bytes_per_s / self.link.h2d_bytes_per_s.value)

    def with_pcie(self, generation: int, lanes: int = 16) -> Self:
        """Another PCIe link, used as well as this profile's own: the same share of its payload. Latencies stay."""
        link = self.link
        if link.generation is None or link.lanes is None:
            raise ProfileError(
                f"pcie={generation} on profile {self.name!r}: its link is NVLink-C2C, a part of the module; "
                "choose a profile with a PCIe link"
            )
        if (generation, lanes) == (link.generation.value, link.lanes.value):
            return self
        other = self._scaled(pcie_payload(generation, lanes) / link.ceiling_bytes_per_s)
        asked = [Quantity(value=x, unit="1", source="asked for", basis=Basis.PRIOR) for x in (generation, lanes)]
        return attrs.evolve(other, link=attrs.evolve(other.link, generation=asked[0], lanes=asked[1]))

    def kernel_ceilings(self) -> tuple[float, float]:
        """Peak FLOP/s and what one kernel reads of device memory in a second."""
        return self.compute.flop_per_s.value, self.memory.kernel_bytes_per_s.value

    def _scaled(self, by: float) -> Self:
        return attrs.evolve(self, link=self.link.scaled(by), uva=self.uva.scaled(by) if self.uva else None)
