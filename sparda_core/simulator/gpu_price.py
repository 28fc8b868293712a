"""What a GPU charges for one operation: a kernel of the compute lane, or a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import ProfileError
from sparda_core.plan import Kind, Op, Phase, StepPlan
from sparda_core.segments import AT_ONCE
from sparda_core.simulator.gpu_parts import CopyEngine, CpuGather, Uva
from sparda_core.simulator.launches import GATHERS, needs_host_list
from sparda_core.simulator.profile import (
    CROWD,
    FLOPS,
    HBM,
    LIGHT,
    LINK,
    MOST_CROWDING,
    PRODUCT,
    Charge,
    Grid,
    Price,
    moves,
)
from sparda_core.simulator.quantity import Quantity
from sparda_core.work import Work

if TYPE_CHECKING:
    from sparda_core.simulator.gpu import GpuProfile

#: Kinds whose kernels are no light ones. "product" is one of a library's by itself.
_CROWDS: dict[str, int] = {
    **dict.fromkeys((Kind.PROJECT, Kind.OUTPUT, Kind.MLP, Kind.HEAD), PRODUCT), "product": PRODUCT,
    # As attention with two thread blocks an SM: 1, 2, 3 blocks of 128 KiB drew 29, 48, 50 GB/s beside scoring, 31, 48,
    # 50 beside that, 25, 41, 46 beside products (16 rows, section `forked` of the H200's samples).
    "score": CROWD + 2,
}  # fmt: skip
#: Products among the launches of an operation; of every other kind each launch without a grid of its own is one.
_PRODUCTS: dict[str, int] = {Kind.PROJECT: 1, Kind.OUTPUT: 1, Kind.MLP: 2, Kind.HEAD: 1}
#: Times that a byte crosses host memory when it is gathered before a copy reads it. It is read once; what is written
#: stays for the most part in the processor's cache, where the copy finds it: two processes that gathered at once, 16
#: threads each, reached 119 GB/s where copies of two GPUs moved 156 (benchmarks/results/2026-11-30-two-gpus-h200.json).
_GATHER_PASSES = 1.3


def cuts(op: Op) -> bool:
    """Whether an operation moves a list of blocks that the device made in this step."""
    return moves(op) and op.kind == Kind.FETCH


def coordinates(op: Op, work: Work, plan: StepPlan, tokens: int, own_in_flight: float) -> dict[str, float]:
    """Where an operation lies, by the names of `GpuProfile.domain`.

    own_in_flight  bytes that a copy's thread block keeps in flight where its work does not say
    """
    if not moves(op):
        return {"tokens" if plan.phase == Phase.DECODE else "prefill_tokens": float(tokens)}
    asked: dict[str, float] = {}
    if not work.h2d_bytes:
        return asked
    if plan.engine == "uva":
        asked["copy_ctas"] = float(work.sms)
        asked["copy_bytes_in_flight"] = work.sms * (work.in_flight_bytes or own_in_flight)
        if work.in_flight_bytes:
            asked["in_flight_bytes"] = work.in_flight_bytes
    if work.pieces:
        asked[f"{plan.engine.replace('-', '_')}_piece_bytes"] = work.h2d_bytes / work.pieces
    return asked


def kernel_price(profile: GpuProfile, op: Op, work: Work, plan: StepPlan, tokens: int) -> Price:
    """Price of an operation of the compute lane."""
    gap_s = profile.launch.graph_s.value
    charges = (*_compute_charges(profile, work, op.kind), *_link_charges(profile, op, work, plan))
    inner_s = max(0, work.launches - 1) * gap_s
    own_s = _own_s(profile, work, op.kind, tokens)
    grid = _grid(profile, work, tokens) if charges else None
    return Price(
        issue_s=_issue_s(profile, op, work, plan), launch_s=gap_s if work.launches else 0.0,
        latency_s=inner_s + own_s + _told_s(profile, op, plan),
        launches_s=inner_s, charges=charges, grid=grid, kernels=max(1, work.launches),
        wave_share=profile.wave_share(grid, tokens, _product_s(profile, work, op.kind)) if grid else 0.0,
        tokens=tokens,
        crowds=_crowds(profile, op, work),
    )  # fmt: skip


def _product_s(profile: GpuProfile, work: Work, kind: str) -> float:
    """What a vendor's product of an operation takes alone; 0 where its kernels are ours."""
    if work.ctas or not work.launches:
        return 0.0
    return flows_s(profile, work, kind) / min(work.launches, _PRODUCTS.get(kind, work.launches))


def _told_s(profile: GpuProfile, op: Op, plan: StepPlan) -> float:
    """What a list costs the compute lane behind whose diff the host is told of it."""
    if op.kind != Kind.DIFF or not needs_host_list(plan.engine) or profile.launches_of(plan) != "segments":
        return 0.0
    return _value(profile.launch.cut_s)


def _crowds(profile: GpuProfile, op: Op, work: Work) -> int:
    """How hard a kernel is on the loads of a copy beside it: attention by how many of its thread blocks an SM holds."""
    if op.kind == Kind.ATTEND:
        held = min(-(-work.ctas // profile.sms), work.ctas_per_sm) if work.ctas else MOST_CROWDING
        return CROWD + min(max(1, held), MOST_CROWDING)
    return _CROWDS.get(op.kind, LIGHT)


def transfer_price(profile: GpuProfile, op: Op, work: Work, plan: StepPlan, tokens: int) -> Price:
    """Price of an operation beside the compute lane."""
    gap_s = profile.launch.graph_s.value
    charges = tuple(_link_charges(profile, op, work, plan))
    if not work.h2d_bytes + work.d2h_bytes:
        charges = tuple(_compute_charges(profile, work, op.kind))
    by_engine = needs_host_list(plan.engine)
    gather = _copy_ctas(profile, op, work, tokens) if plan.engine == "uva" and work.h2d_bytes else None
    inner_s = max(0, work.launches - 1) * gap_s
    return Price(
        issue_s=_issue_s(profile, op, work, plan), launch_s=gap_s if work.launches else 0.0,
        latency_s=inner_s + _latency_s(profile, op, work, plan), launches_s=inner_s, charges=charges, copies=True,
        ctas=gather.grid.ctas if gather else 0, grid=gather.grid if gather else None,
        copy_caps=gather.copy_caps if gather else (), late_caps=gather.late_caps if gather else (),
        **(_beside_it(profile, work, tokens) if gather else {"crowded": _pieces_crowded(profile, work, plan)}),
        tokens=tokens, key=plan.engine if charges else "",
        queue=_queue(work) if by_engine else "",
        host_waits=_is_cut(profile, op, plan), then_s=_then_s(profile, op, work, plan),
        before_s=_before_s(profile, op, plan),
    )  # fmt: skip


def _queue(work: Work) -> str:
    """The copy engine that serves a transfer; what moves nothing, such as work of the host's own, needs none."""
    if work.h2d_bytes:
        return "h2d engine"
    return "d2h engine" if work.d2h_bytes else ""


def _issue_s(profile: GpuProfile, op: Op, work: Work, plan: StepPlan) -> float:
    """Host time until an operation is issued: nothing inside a graph, else a call for each launch.

    At a cut the host waits for the list first, then gathers all of it, or submits the pieces of a first call.
    """
    if _is_cut(profile, op, plan):
        return profile.launch.list_s.value + _taken_up_s(profile, work, plan)
    return work.launches * profile.launch.eager_s.value if profile.launches_of(plan) == "eager" else 0.0


def _taken_up_s(profile: GpuProfile, work: Work, plan: StepPlan) -> float:
    """Host time from a list in hand to the first byte on its way."""
    if not work.h2d_bytes:
        return 0.0
    law = engine_of(profile, plan.engine)
    if isinstance(law, CpuGather):
        return law.call_s.value - _value(law.scatter_s) + work.h2d_bytes / _gather_rate(profile, law)
    assert isinstance(law, CopyEngine)
    start_s = (law.start_s or profile.launch.eager_s).value
    return start_s + min(work.pieces, AT_ONCE) * _value(law.submit_s)


def _gather_rate(profile: GpuProfile, law: CpuGather) -> float:
    """Bytes a second that the host gathers for one GPU: those of one host gather at the same time."""
    shared = profile.memory.host_bytes_per_s.value / (_GATHER_PASSES * profile.gpus)
    return min(law.gather_bytes_per_s.value, shared)


def _then_s(profile: GpuProfile, op: Op, work: Work, plan: StepPlan) -> float:
    """After a cut: pieces that are left are submitted while the first ones move, or a scatter is issued."""
    if not (_is_cut(profile, op, plan) and work.h2d_bytes):
        return 0.0
    law = engine_of(profile, plan.engine)
    if isinstance(law, CpuGather):
        return _value(law.scatter_s)
    assert isinstance(law, CopyEngine)
    return max(0, work.pieces - AT_ONCE) * _value(law.submit_s)


def _before_s(profile: GpuProfile, op: Op, plan: StepPlan) -> float:
    """The device has a segment when it is launched; what the host still does for it delays the next cut."""
    if not _is_cut(profile, op, plan) or profile.launches_of(plan) != "segments":
        return 0.0
    return (profile.launch.segment_s or profile.launch.step_s).value


def _value(quantity: Quantity | None) -> float:
    return 0.0 if quantity is None else float(quantity.value)


def _is_cut(profile: GpuProfile, op: Op, plan: StepPlan) -> bool:
    return needs_host_list(plan.engine) and cuts(op) and profile.launches_of(plan) != "graph"


def _grid(profile: GpuProfile, work: Work, tokens: int) -> Grid:
    """Thread blocks of a kernel of ours as its work states them; else those of a vendor's product."""
    if work.ctas:
        return Grid(ctas=work.ctas, cluster=work.cluster, per_sm=work.ctas_per_sm)
    return profile.product_grid(tokens)


def _compute_charges(profile: GpuProfile, work: Work, kind: str = "") -> list[Charge]:
    """FLOPs and device memory, side by side.

    Where both take about as long, neither runs at its ceiling. A kernel takes all that device memory
    can give while its bytes move, and not only the share that it makes use of: so whatever else draws
    on the memory slows it.
    """
    peak, usual = profile.kernel_ceilings()
    kernel = profile.kernels.bytes_per_s(kind, usual) if profile.kernels else usual
    flops_cap = peak * (min(1.0, work.ctas / profile.sms) if work.ctas else 1.0)
    hbm_cap = min(kernel, work.ctas * work.cta_bytes_per_s) if work.ctas and work.cta_bytes_per_s else kernel
    reads = profile.kernels.reads(kind, work) if profile.kernels else work.hbm_bytes
    slower = _ridge(work.flops / flops_cap, reads / hbm_cap, profile.compute.ridge_bend)
    charges = []
    if work.flops:
        charges.append(Charge(label=FLOPS, size=work.flops, uses={"flops": 1.0}, cap=flops_cap / slower))
    if reads:
        # A small grid that cannot fill the memory leaves the rest of it to others.
        uses = {"hbm": profile.memory.hbm_bytes_per_s.value / kernel * slower}
        charges.append(Charge(label=HBM, size=reads, uses=uses, cap=hbm_cap / slower))
    return charges


def _ridge(flops_s: float, hbm_s: float, bend: Quantity | None) -> float:
    """How much longer than the longer of the two a kernel takes that needs both."""
    if bend is None or not (flops_s and hbm_s):
        return 1.0
    share = min(flops_s, hbm_s) / max(flops_s, hbm_s)
    return float((1 + share**bend.value) ** (1 / bend.value))


def _link_charges(profile: GpuProfile, op: Op, work: Work, plan: StepPlan) -> list[Charge]:
    total = work.h2d_bytes + work.d2h_bytes
    # A transfer writes or reads device memory as it goes; a compute operation has its own flow for that.
    hbm = profile.memory.link_hbm_weight.value * work.hbm_bytes / total if moves(op) and total else 0.0
    cross = profile.link.crosstalk
    charges = []
    if work.h2d_bytes:
        uses = {"h2d": 1.0, "d2h": cross, "hbm": hbm, "host": _passes(profile, op, plan)}
        cap = _h2d_rate(profile, op, work, plan)
        charges.append(Charge(label=LINK, size=work.h2d_bytes, uses=uses, cap=cap))
    if work.d2h_bytes:
        uses = {"d2h": 1.0, "h2d": cross, "hbm": hbm, "host": 1.0}
        cap = _d2h_rate(profile, op, work, plan.engine)
        charges.append(Charge(label=LINK, size=work.d2h_bytes, uses=uses, cap=cap))
    return charges


def _passes(profile: GpuProfile, op: Op, plan: StepPlan) -> float:
    """Times that a byte crosses host memory while it is copied: what the host gathers before that is its own time."""
    gathers = plan.engine == GATHERS and not _is_cut(profile, op, plan)
    return 1.0 + _GATHER_PASSES * gathers


def _h2d_rate(profile: GpuProfile, op: Op, work: Work, plan: StepPlan) -> float:
    link, law = profile.link.h2d_bytes_per_s.value, engine_of(profile, plan.engine)
    if isinstance(law, Uva):
        # With all of its blocks placed and nothing beside.
        return _copy_ctas(profile, op, work, 1).copy_caps[-1][0]
    if isinstance(law, CpuGather):
        # At a cut the gathering is the host's time, before the copy is issued.
        return link if _is_cut(profile, op, plan) else 1 / (1 / law.gather_bytes_per_s.value + 1 / link)
    if work.pieces < 1:
        raise ProfileError(f"op {op.name!r} moves {work.h2d_bytes:g} bytes in {work.pieces} pieces; must be >= 1")
    return law.bytes_per_s(work.h2d_bytes / work.pieces, link)


def _d2h_rate(profile: GpuProfile, op: Op, work: Work, engine: str) -> float:
    link, law = profile.link.d2h_bytes_per_s.value, profile.copy_engine
    if law is None or not (moves(op) and needs_host_list(engine) and work.pieces):
        return link
    return law.bytes_per_s(work.d2h_bytes / work.pieces, link)


@attrs.frozen
class _Ctas:
    """SMs that a gather wants, and its rates with 1, 2, ... CTAs on theirs, as a price has them."""

    grid: Grid
    copy_caps: tuple[tuple[float, float], ...]
    late_caps: tuple[float, ...]


def _copy_ctas(profile: GpuProfile, op: Op, work: Work, tokens: int) -> _Ctas:
    law = engine_of(profile, "uva")
    assert isinstance(law, Uva)
    if work.sms < 1:
        raise ProfileError(f"op {op.name!r} moves blocks by engine 'uva' but holds no SMs; give it copy_ctas >= 1")
    link = profile.link.h2d_bytes_per_s.value
    piece = work.h2d_bytes / work.pieces if work.pieces else 0.0

    def rate(ctas: int, *, beside: bool, late: bool = False) -> float:
        alone = law.bytes_per_s(
            ctas, in_flight=work.in_flight_bytes, cluster=work.cluster, piece=piece, repeated=work.repeated,
            beside=beside, late=late, tokens=max(1, tokens),
        )  # fmt: skip
        return min(alone, link)

    every = range(1, work.sms + 1)
    return _Ctas(
        # Those of a cluster start on SMs of their own.
        Grid(
            ctas=work.sms, cluster=work.cluster, whole_sm=True,
            per_sm=law.per_sm(work.in_flight_bytes) if work.cluster == 1 else 1,
        ),
        tuple((rate(k, beside=False), rate(k, beside=True)) for k in every),
        tuple(rate(k, beside=True, late=True) for k in every),
    )  # fmt: skip


def _beside_it(profile: GpuProfile, work: Work, tokens: int) -> dict[str, Any]:
    """What a gather and the compute beside it do to each other; copy_caps are its rates beside products."""
    law, tokens = profile.uva, max(1, tokens)
    assert law is not None
    each = work.in_flight_bytes
    alone, beside = (
        law.bytes_per_s(work.sms, in_flight=each, beside=beside, tokens=tokens) for beside in (False, True)
    )
    held = range(1, MOST_CROWDING + 1)
    attention = (law.crowded_by(blocks, work.sms, in_flight=each, tokens=tokens) for blocks in held)
    return {
        "crowded": (beside / alone, 1.0, *attention), "drag": _drag(profile, work),
    }  # fmt: skip


def _pieces_crowded(profile: GpuProfile, work: Work, plan: StepPlan) -> tuple[float, ...]:
    """Of a copy engine beside light kernels, products and attention: pieces take longer, bytes do not."""
    law = engine_of(profile, plan.engine) if work.h2d_bytes and work.pieces else None
    slower = 1.0
    if isinstance(law, CopyEngine):
        slower = law.crowded(work.h2d_bytes / work.pieces, profile.link.h2d_bytes_per_s.value)
    return (1.0, *(slower,) * (CROWD + MOST_CROWDING))


def _drag(profile: GpuProfile, work: Work) -> float:
    assert profile.uva is not None
    piece = work.h2d_bytes / work.pieces if work.pieces else 0.0
    return profile.uva.drag(work.sms, in_flight=work.in_flight_bytes, cluster=work.cluster, piece=piece)


def _latency_s(profile: GpuProfile, op: Op, work: Work, plan: StepPlan) -> float:
    engine = plan.engine
    if work.h2d_bytes:
        law = engine_of(profile, engine)
        if isinstance(law, Uva):
            return (law.repeated_round_trip_s if work.repeated else law.round_trip_s).value
        if isinstance(law, CpuGather):
            return 0.0 if _is_cut(profile, op, plan) else law.call_s.value
        return law.call_s.value
    by_engine = work.d2h_bytes and needs_host_list(engine) and profile.copy_engine
    return by_engine.call_s.value if by_engine else 0.0


def engine_of(profile: GpuProfile, engine: str) -> Uva | CopyEngine | CpuGather:
    """The law of an engine; raises ProfileError where the profile has none."""
    law = {"uva": profile.uva, "copy-engine": profile.copy_engine, "cpu-gather": profile.cpu_gather}.get(engine)
    if law is None:
        has = [name for name in profile.engines if getattr(profile, name.replace("-", "_")) is not None]
        raise ProfileError(f"profile {profile.name!r} has no numbers for engine={engine!r}; it has: {', '.join(has)}")
    return law


def alone_s(profile: GpuProfile, work: Work) -> float:
    """Seconds from a kernel of this work to the next of its kind in a graph, where the profile knows nothing of it."""
    return work.launches * profile.launch.graph_s.value + flows_s(profile, work)


def kind_alone_s(profile: GpuProfile, work: Work, kind: str, tokens: int) -> float:
    """The same where the profile knows what an operation of this kind takes by itself."""
    own_s = _own_s(profile, work, kind, tokens, in_turn=False)
    return work.launches * profile.launch.graph_s.value + flows_s(profile, work, kind) + own_s


def _own_s(profile: GpuProfile, work: Work, kind: str, tokens: int, *, in_turn: bool = True) -> float:
    """What an operation takes beyond its launches and its flows."""
    kernels = profile.kernels
    if kernels is None:
        return 0.0
    own_s = kernels.own_s(kind, work, tokens, in_turn=in_turn) + kernels.rounds_s(kind, work, profile.sms)
    return own_s + kernels.begins_s(kind, flows_s(profile, work, kind))


def flows_s(profile: GpuProfile, work: Work, kind: str = "") -> float:
    """Seconds of a kernel's FLOPs and bytes with the device to itself."""
    return max((charge.size / charge.cap for charge in _compute_charges(profile, work, kind)), default=0.0)
