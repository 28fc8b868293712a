"""Laws of copies beside compute: what more thread blocks and more bytes in flight do to both."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from sparda_core.plan import Kind, Lane, Op
from sparda_core.simulator import run
from sparda_core.spans import Span
from sparda_core.work import Work
from tests.simulator.elasticity import slowdown
from tests.simulator.laws.law import law
from tests.simulator.laws.points import machine
from tests.simulator.scenes import by_kind, facts, plan

PIECE = 32768.0
COPY, PRODUCT = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0)


@attrs.frozen(kw_only=True)
class Beside:
    """A product of decoding beside a copy that begins with it.

    tokens  rows of the product; weights  its weight matrix, values
    pieces  blocks that are copied
    """

    tokens: int
    weights: int
    pieces: int = 4096
    ctas: int = 2
    in_flight: float = 131072.0
    profile: str = "h200"

    def spans(self, *, copy: bool = True, product: bool = True) -> dict[str, Span]:
        size = self.pieces * PIECE
        table: dict[str, Work] = {
            Kind.FETCH: Work(
                h2d_bytes=size, hbm_bytes=size, pieces=self.pieces, sms=self.ctas, ctas=self.ctas,
                in_flight_bytes=self.in_flight,
            ),
            Kind.MLP: Work(flops=2.0 * self.weights * self.tokens, hbm_bytes=2.0 * self.weights),
        }  # fmt: skip
        made = plan(*[op for op, wanted in ((COPY, copy), (PRODUCT, product)) if wanted])
        # Laws hold outside of what was calibrated, too.
        profile = attrs.evolve(machine(self.profile), extrapolate=True)
        spans, _ = run.run_step(made, facts(rows=self.tokens), by_kind(table), profile)
        return {span.kind: span for span in spans}

    def copy_ns(self, *, beside: bool) -> int:
        span = self.spans(product=beside)[Kind.FETCH]
        return span.end_ns - span.start_ns

    def product_ns(self, *, beside: bool) -> int:
        span = self.spans(copy=beside)[Kind.MLP]
        return span.end_ns - span.start_ns


weights = st.sampled_from([4096 * 4096, 4096 * 16384, 4 * 4096 * 16384])
pairs = st.builds(
    Beside, tokens=st.integers(1, 256), weights=weights, ctas=st.integers(1, 32),
    in_flight=st.sampled_from([16384.0, 65536.0, 131072.0]), profile=st.sampled_from(["h200", "h100-sxm"]),
)  # fmt: skip


@law(st.tuples(pairs, st.integers(1, 32)), mutants=["only-so-many-ctas"])
def more_copy_ctas_never_slow_a_copy(case: tuple[Beside, int]) -> None:
    pair, other = case
    few, many = (attrs.evolve(pair, ctas=ctas) for ctas in sorted((pair.ctas, other)))
    # Short beside it: the copy must have the link to itself for most of its time, and all of it alone.
    assert many.copy_ns(beside=False) <= few.copy_ns(beside=False) + 2


@law(st.tuples(pairs, st.integers(1, 32)), mutants=["waves-help"])
def more_copy_ctas_never_speed_the_compute_beside_them(case: tuple[Beside, int]) -> None:
    """While the copy lasts: it is made long enough to cover the product at any number of thread blocks."""
    pair, other = case
    few, many = (attrs.evolve(pair, ctas=ctas, pieces=10**6) for ctas in sorted((pair.ctas, other)))
    assert pair.product_ns(beside=False) <= few.product_ns(beside=True) <= many.product_ns(beside=True) + 2


@law(pairs, mutants=["waves-help", "copies-like-company"])
def nothing_is_faster_in_company_than_alone(pair: Beside) -> None:
    assert pair.copy_ns(beside=True) >= pair.copy_ns(beside=False) - 2
    assert pair.product_ns(beside=True) >= pair.product_ns(beside=False) - 2


@law(st.tuples(pairs, st.sampled_from([16384.0, 32768.0, 131072.0])), mutants=["fewer-bytes-are-quicker"])
def more_bytes_in_flight_never_slow_a_copy(case: tuple[Beside, float]) -> None:
    pair, other = case
    few, many = (attrs.evolve(pair, in_flight=size) for size in sorted((pair.in_flight, other)))
    for beside in (False, True):
        assert many.copy_ns(beside=beside) <= few.copy_ns(beside=beside) + 2


@law(pairs, mutants=["waves-counted-twice", "waves-forgotten", "drag-forgotten", "drag-counted-twice"])
def a_product_beside_a_copy_loses_its_waves_its_memory_and_the_drag_once(pair: Beside) -> None:
    """Between waves and drag alone, and those with all the device memory that a full link takes."""
    pair = attrs.evolve(pair, pieces=10**6)
    profile = machine(pair.profile)
    assert profile.uva is not None
    # What a launch takes by itself, nobody beside it lengthens.
    own = 1e9 * profile.kernels.own_s(Kind.MLP, Work(), pair.tokens) if profile.kernels else 0.0
    alone, beside = (pair.product_ns(beside=beside) - own for beside in (False, True))
    grid = profile.product_grid(pair.tokens)
    waves = slowdown(grid, profile.sms, pair.ctas, 1, profile.wave_share(grid, pair.tokens, alone / 1e9))
    law = profile.uva
    longer = waves + law.drag_per_byte.value * min(pair.ctas * pair.in_flight, law.drag_most_bytes.value)
    taken = profile.memory.link_hbm_weight.value * profile.link.h2d_bytes_per_s.value
    memory = 1 / (1 - taken / profile.memory.hbm_bytes_per_s.value)
    # The nanosecond that the end alone is rounded up by counts as often as the product takes longer.
    assert (alone - 1) * longer - 2 <= beside <= alone * longer * memory + 2
