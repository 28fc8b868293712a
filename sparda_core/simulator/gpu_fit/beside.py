"""A copy beside a layer's decode products, as a calibration measures it and as the simulator plays it."""

from __future__ import annotations

import attrs
import numpy as np

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.run import run_step
from sparda_core.work import Work

#: A layer's products of an 8B model: inputs, outputs; eight layers are one graph.
PRODUCTS = ((4096, 4096), (4096, 4096), (4096, 16384), (4096, 16384), (16384, 4096))
SIZES = tuple(inputs * outputs for inputs, outputs in PRODUCTS)
LAYERS = 8
#: Kind of an operation that is one product of a library.
PRODUCT = "product"
#: Blocks of the copies: K and V of 64 tokens of one KV head.
BLOCK = 32768
#: A copy of so many bytes outlasts any of the graphs.
OUTLASTS = 1e9
#: What a copy moves whose rate is asked for: at 4 GB/s it takes 5 ms.
RATED_BYTES = 20e6
#: From the start of the products to that of a copy that comes while they run, in the midst of the first product.
LATE_S = 3e-6


@attrs.frozen(kw_only=True)
class Copy:
    """A copy kernel, or the copy engine with `ctas` 0.

    total     bytes of the copy; None: it outlasts the products
    late      True: it comes while products run; False: it is there before their first kernel
    """

    ctas: int = 0
    cluster: int = 1
    in_flight: float = 131072
    block: float = BLOCK
    repeated: bool = False
    total: float | None = None
    late: bool = True

    def work(self) -> Work:
        """What it asks of the machine."""
        total = OUTLASTS if self.total is None else self.total
        piece = self.block if self.ctas else total
        return Work(
            h2d_bytes=total, hbm_bytes=total, pieces=int(max(1, total / piece)), sms=self.ctas, cluster=self.cluster,
            in_flight_bytes=self.in_flight, repeated=self.repeated,
        )  # fmt: skip


def products_s(tokens: int, profile: GpuProfile, copy: Copy | None = None, *, graphs: int = 1) -> tuple[float, float]:
    """Seconds of the last of so many graphs of eight layers in a row, and of the copy beside them."""
    ops = [Op(kind=PRODUCT, layer=at) for at in range(graphs * LAYERS * len(SIZES))]

    def work(op: Op, _: StepFacts) -> Work:
        if op.kind == Kind.STAGE:
            assert copy is not None
            return copy.work()
        if op.kind == "wait":
            return Work(hbm_bytes=LATE_S * profile.link.d2h_bytes_per_s.value, d2h_bytes=1.0, launches=0)
        size = SIZES[op.layer % len(SIZES)]
        return Work(flops=2 * size * tokens, hbm_bytes=2 * size)

    beside = []
    if copy is not None:
        wait = (Op(kind="wait", layer=0, lane=Lane.HOST),) if copy.late else ()
        beside = [*wait, Op(kind=Kind.STAGE, layer=0, lane=Lane.H2D, after=tuple(op.name for op in wait))]
    engine = "uva" if copy is None or copy.ctas else "copy-engine"
    plan = StepPlan(
        ops=(*beside, *ops), phase=Phase.DECODE, runtime="products", selector="products", lead=1, resident_layers=0,
        engine=engine,
    )  # fmt: skip
    spans, _ = run_step(plan, idle_facts(tokens), work, profile)
    ends = [span.end_ns for span in spans if span.lane == Lane.COMPUTE]
    moved = [span.end_ns - span.start_ns for span in spans if span.lane == Lane.H2D]
    last = ends[-1] - (ends[-1 - LAYERS * len(SIZES)] if graphs > 1 else 0)
    return last / 1e9, moved[0] / 1e9 if moved else 0.0


def idle_facts(rows: int) -> StepFacts:
    """Rows that select and miss nothing: products ask for no more."""
    none = np.zeros((1, rows, 1), np.int64)
    return StepFacts(
        new_tokens=1, budget=1, slots=0, active=np.ones(rows), lengths=np.full(rows, 1), selected=none, misses=none,
        opened=none, late=none, wasted=none,
    )  # fmt: skip


def slowdown(copy: Copy, tokens: int, profile: GpuProfile) -> float:
    """How many times as long the products take beside the copy: a whole graph of them wholly beside it."""
    graphs = 2 if copy.late else 1
    return products_s(tokens, profile, copy, graphs=graphs)[0] / products_s(tokens, profile, graphs=graphs)[0]


def rate(copy: Copy, tokens: int, profile: GpuProfile) -> float:
    """Bytes a second of a copy that comes while products run and ends while they still do: waiting for SMs counts."""
    short = attrs.evolve(copy, total=RATED_BYTES)
    _, took_s = products_s(tokens, profile, short, graphs=1 + int(RATED_BYTES / 4e9 / products_s(tokens, profile)[0]))
    return RATED_BYTES / took_s
