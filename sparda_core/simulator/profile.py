"""Profile: what a machine charges for the operations of a plan. One class a kind of device."""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs

from sparda_core.errors import ProfileError
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.simulator.quantity import Basis, BendCurve, PieceCurve, Quantity, RowsCurve, WaveShare
from sparda_core.work import Work

#: Kinds that a runtime writes; every other kind belongs to a selector.
RUNTIME_KINDS = frozenset(map(str, Kind))
#: What a compute kernel does to copies: next to nothing, what a large product does, what attention does.
LIGHT, PRODUCT, CROWD = 0, 1, 2
#: What an operation can wait for, by the label of its flow.
FLOPS, HBM, LINK, TIME = "flops", "hbm", "link", "time"


@attrs.frozen(kw_only=True)
class Charge:
    """One flow that an operation starts: `size` units, of which each takes `uses` from the shared resources."""

    label: str
    size: float
    uses: Mapping[str, float]
    cap: float


@attrs.frozen(kw_only=True, cache_hash=True)
class Grid:
    """Thread blocks that want SMs.

    ctas        how many
    cluster     how many of them start together on one pair of SMs (a TPC): 1, or an even number
    per_sm      how many one SM holds at once
    whole_sm    True for copy CTAs: they need SMs that nothing else uses, and keep them to the end
    """

    ctas: int
    cluster: int = 1
    per_sm: int = 1
    whole_sm: bool = False


@attrs.frozen(kw_only=True)
class Price:
    """What one operation costs when nothing runs beside it.

    issue_s    host time to issue it; the host issues operations one after another, in plan order
    launch_s   from the end of what it waits for to its start; part of no span
    wake_s     the same where it found itself waiting for another lane, and launched into the wait;
               None where a launch begins only when everything has ended
    latency_s  inside the span, before its flows
    launches_s the part of latency_s that is launches of further kernels
    charges    its flows, side by side; it ends with the last one
    copies     True for a transfer beside the compute lane, False for an operation of that lane
    ctas       thread blocks that hold SMs while it runs
    grid       thread blocks of a compute kernel, or of a copy kernel (whole_sm); None: takes no SM
    kernels    kernels of equal length that follow each other in it: between two of them SMs change hands
    wave_share what one more wave of its grid adds, as a share of the operation's time alone
    copy_caps  of a copy kernel: (rate alone, rate beside compute) with 1, 2, ... CTAs placed; empty: charges say it
    late_caps  its rate beside compute where its first CTA found an SM while a compute kernel ran; empty: as copy_caps
    drag       what the bytes that a copy keeps in flight add to a kernel beside it, as a share of its time alone
    crowds     how hard a compute kernel is on the loads of a copy beside it: LIGHT, PRODUCT or CROWD
    crowded    of a copy: how much longer it takes beside each of these than copy_caps, or its charges, say
    queue      operations of one queue run one after another, whatever their lane (a copy engine's direction)
    host_waits the host issues it, and all that follows in the plan, only after what it waits for has ended
    then_s     host time after issuing it, before the next operation is issued
    before_s   host time before it can wait at all: what is left of issuing the operations before it
    tokens     tokens it processes
    load       share of its time in which a transfer keeps its processor busy (less than 1 on a slow link)
    key        what a CPU profile looks it up by
    """

    issue_s: float = 0.0
    launch_s: float = 0.0
    wake_s: float | None = None
    latency_s: float = 0.0
    launches_s: float = 0.0
    charges: tuple[Charge, ...] = ()
    copies: bool = False
    ctas: int = 0
    grid: Grid | None = None
    kernels: int = 1
    wave_share: float = 0.0
    copy_caps: tuple[tuple[float, float], ...] = ()
    late_caps: tuple[float, ...] = ()
    drag: float = 0.0
    crowds: int = LIGHT
    crowded: tuple[float, float, float] = (1.0, 1.0, 1.0)
    queue: str = ""
    host_waits: bool = False
    then_s: float = 0.0
    before_s: float = 0.0
    tokens: int = 1
    load: float = 1.0
    key: str = ""

    @property
    def nothing(self) -> bool:
        """True where there is nothing to do, not even a launch."""
        return not (self.charges or self.launch_s or self.latency_s)


def moves(op: Op) -> bool:
    """Whether an operation is a transfer beside the compute lane."""
    return op.lane != Lane.COMPUTE


@attrs.frozen(kw_only=True)
class Profile(abc.ABC):
    """A machine: where its numbers come from, and what it charges.

    name   profile name; `title`, `date` say what was measured and when
    """

    device: ClassVar[str]
    engines: ClassVar[tuple[str, ...]]

    name: str
    title: str
    date: str

    @abc.abstractmethod
    def capacity(self) -> dict[str, float]:
        """Shared resources, units per second."""

    @abc.abstractmethod
    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        """What `op` costs alone; of an operation only its kind and its lane may matter, besides its work.

        Raises ProfileError where the profile has no law for it.
        """

    @abc.abstractmethod
    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        """How much slower the flows of `mine` are while `others` of its replica run, >= 1.

        Of a copy whose rates beside compute are given (copy_caps) compared with these: beside a light kernel below 1.

        What more waves take is added, copy_caps and late_caps come on top. The order of `others` says nothing, nor
        does how much a charge of any of them moves, but for none at all.
        """

    @property
    def sms(self) -> int:
        """SMs whose slots are modelled; 0: none, and grids mean nothing."""
        return 0

    @property
    def shared(self) -> frozenset[str]:
        """Resources that several such machines of one host share; every other one is each machine's own."""
        return frozenset()

    def domain(self) -> dict[str, tuple[float, float]]:
        """What the profile was calibrated for: name -> least, most; empty where nothing is bounded."""
        return {}

    def outside(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> tuple[str, ...]:
        """In words, what of an operation lies outside what the profile was calibrated for; empty where nothing does."""
        return ()

    @property
    @abc.abstractmethod
    def step_s(self) -> float:
        """From the end of one step to the first operation of the next."""

    @property
    @abc.abstractmethod
    def device_bytes(self) -> float:
        """Memory of the device."""

    @property
    @abc.abstractmethod
    def reserved_bytes(self) -> float:
        """Device memory that is taken before a model is loaded."""

    @property
    @abc.abstractmethod
    def host_bytes(self) -> float | None:
        """Memory for the host store; None where it comes out of the device's (a CPU)."""

    @abc.abstractmethod
    def with_link(self, bytes_per_s: float) -> Self:
        """The same machine with another host link (each way)."""

    @abc.abstractmethod
    def kernel_ceilings(self) -> tuple[float, float]:
        """FLOP/s and device bytes/s that one kernel reaches; infinite where a profile knows no ceiling."""

    def check_engine(self, plan: StepPlan) -> None:
        """Raise ProfileError where the plan moves blocks in a way this device does not have."""
        if plan.engine not in self.engines and any(moves(op) for op in plan.ops):
            raise ProfileError(
                f"engine={plan.engine!r} does not exist on profile {self.name!r} (device {self.device}); "
                f"write the plan with one of: {', '.join(self.engines)}"
            )

    def bases(self) -> dict[str, Basis]:
        """What each number rests on, by its dotted name."""
        return dict(_bases(self, ""))

    @property
    def digest(self) -> str:
        """Twelve hex digits that change with any number of the profile."""
        text = json.dumps(attrs.asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _bases(part: Any, prefix: str) -> Iterator[tuple[str, Basis]]:
    for field in attrs.fields(type(part)):
        value = getattr(part, field.name)
        if isinstance(value, Quantity | WaveShare | BendCurve | PieceCurve | RowsCurve):
            yield prefix + field.name, value.basis
        elif attrs.has(type(value)):
            yield from _bases(value, f"{prefix}{field.name}.")
