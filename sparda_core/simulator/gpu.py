"""A GPU: launch gaps, roofline of compute and device memory, and three ways to cross the host link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import attrs

from sparda_core.errors import ProfileError
from sparda_core.plan import Op, StepPlan
from sparda_core.simulator.gpu_parts import Compute, CopyEngine, CpuGather, Launch, Link, Memory, Uva
from sparda_core.simulator.profile import FLOPS, HBM, LINK, Charge, Price, Profile, moves
from sparda_core.simulator.quantity import Slowdown
from sparda_core.work import Work


@attrs.frozen(kw_only=True)
class GpuProfile(Profile):
    """A GPU behind a host link. An engine whose section is missing cannot be predicted.

    eager  False: the step is one CUDA graph; True: the host launches every kernel, in plan order
    """

    device: ClassVar[str] = "gpu"
    engines: ClassVar[tuple[str, ...]] = ("uva", "copy-engine", "cpu-gather")

    memory: Memory
    compute: Compute
    launch: Launch
    link: Link
    uva: Uva | None = None
    copy_engine: CopyEngine | None = None
    cpu_gather: CpuGather | None = None
    eager: bool = attrs.field(default=False, metadata={"setting": True})

    def capacity(self) -> dict[str, float]:
        """FLOP/s, device memory, the link each way, host memory."""
        return {
            "flops": self.compute.flop_per_s.value,
            "hbm": self.memory.hbm_bytes_per_s.value,
            "h2d": self.link.h2d_bytes_per_s.value,
            "d2h": self.link.d2h_bytes_per_s.value,
            "host": self.memory.host_bytes_per_s.value,
        }

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        """Launch gaps, then the longest of its flows.

        A compute operation draws FLOPs and device memory side by side; one that stays below a CTA per
        SM cannot use more than its SMs' share of the FLOPs. A transfer follows the law of the engine.
        """
        copies = moves(op)
        gap_s = self.launch.graph_s.value
        charges = [*self._compute_charges(op, work), *self._link_charges(op, work, plan)]
        holds = plan.engine == "uva" and copies and work.h2d_bytes > 0
        if holds and work.sms < 1:
            raise ProfileError(f"op {op.name!r} moves blocks by engine 'uva' but holds no SMs; give it copy_ctas >= 1")
        inner_s = max(0, work.launches - 1) * gap_s
        return Price(
            issue_s=work.launches * self.launch.eager_s.value if self.eager else 0.0,
            launch_s=gap_s if work.launches else 0.0,
            latency_s=inner_s + (self._latency_s(plan.engine) if copies and work.h2d_bytes else 0.0),
            launches_s=inner_s,
            charges=tuple(charges), copies=copies, ctas=work.sms if holds else 0, tokens=tokens,
            key=plan.engine if copies and charges else "",
        )  # fmt: skip

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        """Compute beside a copy by the engine's table; a copy beside compute by the other one."""
        if mine.copies:
            busy = any(not other.copies and other.charges for other in others)
            return self.uva.copy_slowdown.at(mine.ctas, mine.tokens) if busy and self.uva and mine.ctas else 1.0
        ctas = sum(other.ctas for other in others)
        if ctas and self.uva:
            return self.uva.compute_slowdown.at(ctas, mine.tokens)
        table: Slowdown | None = None
        if any(other.key in ("copy-engine", "cpu-gather") for other in others) and self.copy_engine:
            table = self.copy_engine.compute_slowdown
        return table.at(0, mine.tokens) if table else 1.0

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
        """Host memory."""
        return self.memory.host_bytes.value

    def with_link(self, bytes_per_s: float) -> Self:
        """Scale the link, both ways together and the gather's ceiling to `bytes_per_s`; latencies stay."""
        if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
            raise ProfileError(f"link={bytes_per_s} bytes/s must be finite and > 0")
        by = bytes_per_s / self.link.h2d_bytes_per_s.value
        return attrs.evolve(self, link=self.link.scaled(by), uva=self.uva.scaled(by) if self.uva else None)

    def kernel_ceilings(self) -> tuple[float, float]:
        """Peak FLOP/s and what one kernel reads of device memory in a second."""
        return self.compute.flop_per_s.value, self.memory.kernel_bytes_per_s.value

    def _compute_charges(self, op: Op, work: Work) -> list[Charge]:
        peak, kernel = self.kernel_ceilings()
        charges = []
        if work.flops:
            share = min(1.0, work.ctas / self.compute.sms.value) if work.ctas else 1.0
            charges.append(Charge(label=FLOPS, size=work.flops, uses={"flops": 1.0}, cap=peak * share))
        if work.hbm_bytes and not (moves(op) and work.h2d_bytes + work.d2h_bytes):
            # A small grid of slow thread blocks does not draw what the memory could give.
            cap = min(kernel, work.ctas * work.cta_bytes_per_s) if work.cta_bytes_per_s else kernel
            charges.append(Charge(label=HBM, size=work.hbm_bytes, uses={"hbm": 1.0}, cap=cap))
        return charges

    def _link_charges(self, op: Op, work: Work, plan: StepPlan) -> list[Charge]:
        total = work.h2d_bytes + work.d2h_bytes
        # A transfer writes or reads device memory as it goes; a compute operation has its own flow for that.
        hbm = work.hbm_bytes / total if moves(op) and total else 0.0
        cross = self.link.crosstalk
        charges = []
        if work.h2d_bytes:
            passes = 3.0 if plan.engine == "cpu-gather" else 1.0
            uses = {"h2d": 1.0, "d2h": cross, "hbm": hbm, "host": passes}
            cap = self._h2d_bytes_per_s(op, work, plan.engine)
            charges.append(Charge(label=LINK, size=work.h2d_bytes, uses=uses, cap=cap))
        if work.d2h_bytes:
            uses = {"d2h": 1.0, "h2d": cross, "hbm": hbm, "host": 1.0}
            cap = self.link.d2h_bytes_per_s.value
            charges.append(Charge(label=LINK, size=work.d2h_bytes, uses=uses, cap=cap))
        return charges

    def _h2d_bytes_per_s(self, op: Op, work: Work, engine: str) -> float:
        link = self.link.h2d_bytes_per_s.value
        law = self._engine(engine)
        if isinstance(law, Uva):
            return min(law.bytes_per_s(work.sms), link)
        if isinstance(law, CpuGather):
            return 1 / (1 / law.gather_bytes_per_s.value + 1 / link)
        if work.pieces < 1:
            raise ProfileError(f"op {op.name!r} moves {work.h2d_bytes:g} bytes in {work.pieces} pieces; must be >= 1")
        return law.bytes_per_s(work.h2d_bytes / work.pieces, link)

    def _latency_s(self, engine: str) -> float:
        law = self._engine(engine)
        return law.round_trip_s.value if isinstance(law, Uva) else law.call_s.value

    def _engine(self, engine: str) -> Uva | CopyEngine | CpuGather:
        law = {"uva": self.uva, "copy-engine": self.copy_engine, "cpu-gather": self.cpu_gather}.get(engine)
        if law is None:
            has = [name for name in self.engines if getattr(self, name.replace("-", "_")) is not None]
            raise ProfileError(f"profile {self.name!r} has no numbers for engine={engine!r}; it has: {', '.join(has)}")
        return law
