"""A step whose copies the host lists, as a calibration measures it and as the simulator plays it."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import idle_facts
from sparda_core.simulator.run import run_step
from sparda_core.work import Work

#: Layers of a step whose blocks are copied; rows of its products.
LAYERS, ROWS = 12, 16


def plan_of(layers: int, *, engine: str, early: bool, copies: bool = True) -> StepPlan:
    """Products and a list, layer by layer. A copy is waited for at once, or, `early`, a layer later.

    copies  False: the same operations of the compute lane, which wait for nothing
    """
    ops = [Op(kind=Kind.EMBED)]
    for layer in range(layers):
        ops += [Op(kind=Kind.MLP, layer=layer), Op(kind=Kind.DIFF, layer=layer)]
        ops.append(Op(kind=Kind.FETCH, layer=layer, lane=Lane.H2D, after=(f"{Kind.DIFF}/{layer}",)))
        reader = layer - early
        if reader >= 0:
            ops.append(_reader(reader))
    if early:
        ops.append(_reader(layers - 1))
    if not copies:
        ops = [Op(kind=op.kind, layer=op.layer) for op in ops if op.kind != Kind.FETCH]
    return StepPlan(
        ops=ops, phase=Phase.DECODE, runtime="calibration", selector="none", lead=int(early), resident_layers=0,
        engine=engine,
    )  # fmt: skip


def _reader(layer: int) -> Op:
    return Op(kind=Kind.ATTEND, layer=layer, after=(f"{Kind.FETCH}/{layer}",))


def layer_s(profile: GpuProfile, engine: str, blocks: int, nbytes: float, whole_s: float, *, early: bool) -> float:
    """Seconds of a layer of such a step, a list of `blocks` blocks and so many bytes each, by the simulator.

    whole_s  of the same kernels in one graph, without lists and copies
    """
    by_itself_s = profile.kernels.own_s(Kind.MLP, Work(), ROWS) if profile.kernels else 0.0
    own_s = profile.launch.graph_s.value + by_itself_s
    kernels = Work(hbm_bytes=max(0.0, whole_s - own_s) * profile.memory.kernel_bytes_per_s.value)
    table = {Kind.MLP: kernels, Kind.FETCH: Work(h2d_bytes=nbytes, hbm_bytes=nbytes, pieces=blocks)}

    def work(op: Op, _: StepFacts) -> Work:
        return table.get(Kind(op.kind), Work(launches=0))

    plan = plan_of(LAYERS, engine=engine, early=early)
    spans, _ = run_step(plan, idle_facts(ROWS), work, profile)
    return max(span.end_ns for span in spans) / LAYERS / 1e9
