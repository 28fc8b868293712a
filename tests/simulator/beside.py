"""A copy beside decode products, as a benchmark measures it and as the simulator plays it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.run import run_step
from sparda_core.work import Work
from tests.simulator.scenes import facts, plan

#: Eight layers of an 8B model's decode products, inputs x outputs.
SIZES = (4096 * 4096, 4096 * 4096, *([4096 * 16384] * 3))
LAYERS = 8
TOKENS = (16, 64, 256)
#: Blocks of the measured copies: K and V of 64 tokens of one KV head.
BLOCK = 32768
#: One process on one H200; `python -m benchmarks.gpu.gather`.
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-gather-h200.json"
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
        total = OUTLASTS if self.total is None else self.total
        piece = self.block if self.ctas else total
        return Work(
            h2d_bytes=total, hbm_bytes=total, pieces=int(max(1, total / piece)), sms=self.ctas, cluster=self.cluster,
            in_flight_bytes=self.in_flight, repeated=self.repeated,
        )  # fmt: skip


@functools.cache
def h200() -> GpuProfile:
    profile = load_profile("h200")
    assert isinstance(profile, GpuProfile)
    return profile


def products_s(tokens: int, profile: GpuProfile, copy: Copy | None = None, *, graphs: int = 1) -> tuple[float, float]:
    """Seconds of the last of so many graphs of eight layers in a row, and of the copy beside them."""
    ops = [Op(kind=Kind.MLP, layer=at) for at in range(graphs * LAYERS * len(SIZES))]

    def work(op: Op, seen: StepFacts) -> Work:
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
    spans, _ = run_step(plan(*beside, *ops, engine=engine), facts(rows=tokens), work, profile)
    ends = [span.end_ns for span in spans if span.lane == Lane.COMPUTE]
    moved = [span.end_ns - span.start_ns for span in spans if span.lane == Lane.H2D]
    last = ends[-1] - (ends[-1 - LAYERS * len(SIZES)] if graphs > 1 else 0)
    return last / 1e9, moved[0] / 1e9 if moved else 0.0


def slowdown(copy: Copy, tokens: int, profile: GpuProfile) -> float:
    """How many times as long the products take beside the copy: a whole graph of them wholly beside it."""
    graphs = 2 if copy.late else 1
    return products_s(tokens, profile, copy, graphs=graphs)[0] / products_s(tokens, profile, graphs=graphs)[0]


def rate(copy: Copy, tokens: int, profile: GpuProfile) -> float:
    """Bytes a second of a copy that comes while products run and ends while they still do: waiting for SMs counts."""
    short = attrs.evolve(copy, total=RATED_BYTES)
    _, took_s = products_s(tokens, profile, short, graphs=1 + int(RATED_BYTES / 4e9 / products_s(tokens, profile)[0]))
    return RATED_BYTES / took_s


def measured() -> list[dict[str, float]]:
    """Rows of the results: the copy engine, and copies of the shipped kernel in bf16 as it is set."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return [row for row in rows if row["what"] == "beside" and row["dtype"] == "bfloat16" and not row["warps"]]
