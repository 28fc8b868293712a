"""Copies beside decode products on one H200: fitted from three points, every other measured point follows or is named.

What is fitted, each where nothing else plays a part: `wave_share` from three lone copy CTAs, `link_hbm_weight` from the
copy engine, which holds no SM, `drag_per_byte` from two CTAs at 256 rows, where neither memory nor a wave shows.
Predicted: any other number of CTAs, clusters, bytes in flight, and other copy kernels.
"""

from __future__ import annotations

import attrs
import pytest

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
#: Seconds of one layer with nothing beside it, on two days; at 1 token one day only.
ALONE_S = {1: (126.5e-6,), 16: (127e-6, 132.1e-6), 64: (131e-6, 134.6e-6), 256: (203.5e-6, 192e-6)}
#: A copy of so many bytes outlasts any of the graphs.
OUTLASTS = 1e9


@attrs.frozen(kw_only=True)
class Copies:
    """A copy kernel beside the products, and what it did to them.

    kernel   one of KERNELS
    total    bytes of the copy; infinite where it outlasts the products
    measured slowdown of the products at 16, 64, 256 tokens
    misses   tokens at which the prediction is more than 3 points off
    """

    ctas: int = 0
    cluster: int = 1
    in_flight: float = 131072
    kernel: str = "loads"
    repeated: bool = False
    total: float = float("inf")
    measured: tuple[float, float, float]
    misses: tuple[int, ...] = ()


#: What another copy kernel's own round trip is, seconds: on fresh lists, on repeated ones. From the rate of one CTA
#: with 192 KiB in flight and nothing beside (18.5 and 28 GB/s; 42.0 with look-ahead, not tried on repeated lists).
KERNELS = {"bulk": (9.6e-6, 6.0e-6), "bulk, looking ahead": (3.7e-6, 3.7e-6)}
LONG = 64 * 2**20
OLD = 16384
BULK = 12 * 16384
MEASURED = {
    # Fresh lists, 16 KiB blocks: ordinary loads, 128 KiB in flight a CTA.
    "copy engine": Copies(measured=(1.045, 1.032, 1.007)),
    "1 CTA": Copies(ctas=1, measured=(1.019, 1.013, 1.011)),
    "2 CTAs": Copies(ctas=2, measured=(1.050, 1.041, 1.017)),
    "3 CTAs": Copies(ctas=3, measured=(1.159, 1.278, 1.741)),
    "4 CTAs": Copies(ctas=4, measured=(1.183, 1.292, 1.753)),
    "4 CTAs of 64 KiB": Copies(ctas=4, in_flight=65536, measured=(1.139, 1.253, 1.757)),
    "one cluster of 2": Copies(ctas=2, cluster=2, measured=(1.025, 1.016, 1.012)),
    "two clusters of 2": Copies(ctas=4, cluster=2, measured=(1.045, 1.037, 1.013)),
    # At 64 tokens sixteen and thirty-two cost less than four do, at 16 tokens more: what holds more SMs and has
    # as many bytes in flight costs as much here, or more.
    "16 old CTAs": Copies(ctas=16, in_flight=OLD, measured=(1.172, 1.229, 1.738), misses=(64,)),
    # Bulk copies, 192 KiB in flight a CTA.
    "bulk, 1 CTA": Copies(ctas=1, in_flight=BULK, kernel="bulk", measured=(1.019, 1.014, 1.018)),
    "bulk, 2 CTAs": Copies(ctas=2, in_flight=BULK, kernel="bulk", measured=(1.029, 1.021, 1.021)),
    "bulk, looking ahead, 1 CTA": Copies(
        ctas=1, in_flight=BULK, kernel="bulk, looking ahead", measured=(1.015, 1.014, 1.014)
    ),
    "bulk, looking ahead, 2 CTAs": Copies(
        ctas=2, in_flight=BULK, kernel="bulk, looking ahead", measured=(1.069, 1.054, 1.024)
    ),
    "bulk, one cluster of 2": Copies(
        ctas=2, cluster=2, in_flight=BULK, kernel="bulk", measured=(1.022, 1.020, 1.023)
    ),
    "bulk, one cluster of 4": Copies(
        ctas=4, cluster=4, in_flight=BULK, kernel="bulk", measured=(1.062, 1.078, 1.061)
    ),
    "bulk, 6 CTAs in one": Copies(
        ctas=6, cluster=6, in_flight=BULK, kernel="bulk", repeated=True, measured=(1.21, 1.33, 1.77)
    ),
    # 1.5 MiB in flight, on four whole TPCs. Not for the TPCs: loads on four whole TPCs cost what four lone CTAs do.
    "bulk, four clusters of 2": Copies(
        ctas=8, cluster=2, in_flight=BULK, kernel="bulk", repeated=True, measured=(1.32, 1.45, 1.77),
        misses=(16, 64, 256),
    ),
    # Another day, repeated lists, 64 MiB a copy: at 256 tokens it ends before the products do.
    "4 old CTAs, 64 MiB": Copies(ctas=4, in_flight=OLD, repeated=True, total=LONG, measured=(1.119, 1.253, 1.656)),
    "8 old CTAs, 64 MiB": Copies(ctas=8, in_flight=OLD, repeated=True, total=LONG, measured=(1.142, 1.256, 1.393)),
    "16 old CTAs, 64 MiB": Copies(
        ctas=16, in_flight=OLD, repeated=True, total=LONG, measured=(1.173, 1.238, 1.372), misses=(64,)
    ),
    "32 old CTAs, 64 MiB": Copies(
        ctas=32, in_flight=OLD, repeated=True, total=LONG, measured=(1.189, 1.248, 1.372), misses=(64,)
    ),
    "bulk, 2 CTAs, 64 MiB": Copies(
        ctas=2, in_flight=BULK, kernel="bulk", repeated=True, total=LONG, measured=(1.09, 1.06, 1.02), misses=(16,)
    ),
    "bulk, 3 CTAs, 64 MiB": Copies(
        ctas=3, in_flight=BULK, kernel="bulk", repeated=True, total=LONG, measured=(1.20, 1.27, 1.40)
    ),
    "bulk, 4 CTAs, 64 MiB": Copies(
        ctas=4, in_flight=BULK, kernel="bulk", repeated=True, total=LONG, measured=(1.22, 1.26, 1.42),
        misses=(16, 64, 256),
    ),
}  # fmt: skip


def with_kernel(profile: GpuProfile, kernel: str) -> GpuProfile:
    """The profile as it would be for another copy kernel: rates are its own, what it costs compute is not."""
    if kernel not in KERNELS:
        return profile
    law = profile.uva
    assert law is not None
    fresh, repeated = (law.round_trip_s.with_value(value, kernel) for value in KERNELS[kernel])
    other = attrs.evolve(law, round_trip_s=fresh, repeated_round_trip_s=repeated, pairs=None)
    # 192 KiB in flight lie outside of what the profile was calibrated for.
    return attrs.evolve(profile, uva=other, extrapolate=True)


def h200() -> GpuProfile:
    profile = load_profile("h200")
    assert isinstance(profile, GpuProfile)
    return profile


def products_ns(tokens: int, profile: GpuProfile, copies: Copies | None = None) -> int:
    """Eight layers of products in one graph, the copy beside them under way before their first kernel."""
    ops = [Op(kind=Kind.MLP, layer=at) for at in range(LAYERS * len(SIZES))]

    def work(op: Op, seen: StepFacts) -> Work:
        if copies is not None and op.kind == Kind.STAGE:
            block = 16384 if copies.ctas else 2**30
            size = min(copies.total, OUTLASTS)
            return Work(
                h2d_bytes=size, hbm_bytes=size, pieces=int(max(1, size / block)), sms=copies.ctas,
                cluster=copies.cluster, in_flight_bytes=copies.in_flight, repeated=copies.repeated,
            )  # fmt: skip
        size = SIZES[op.layer % len(SIZES)]
        return Work(flops=2 * size * tokens, hbm_bytes=2 * size)

    engine = "uva" if copies is None or copies.ctas else "copy-engine"
    beside = [] if copies is None else [Op(kind=Kind.STAGE, layer=0, lane=Lane.H2D)]
    spans, _ = run_step(plan(*beside, *ops, engine=engine), facts(rows=tokens), work, profile)
    return max(span.end_ns for span in spans if span.lane == Lane.COMPUTE)


def predicted(copies: Copies, tokens: int, profile: GpuProfile) -> float:
    profile = with_kernel(profile, copies.kernel)
    return products_ns(tokens, profile, copies) / products_ns(tokens, profile)


@pytest.mark.parametrize("tokens", ALONE_S)
def test_decode_products_alone_take_what_was_measured(tokens: int) -> None:
    days = ALONE_S[tokens]
    assert products_ns(tokens, h200()) / LAYERS / 1e9 == pytest.approx(sum(days) / len(days), rel=0.03)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_slowdown_is_predicted_within_three_points_or_named_as_missed(name: str, tokens: int) -> None:
    copies = MEASURED[name]
    off = predicted(copies, tokens, h200()) - copies.measured[TOKENS.index(tokens)]
    # Slowdowns were measured to a tenth of a point.
    assert (round(abs(off), 3) > 0.03) == (tokens in copies.misses), f"off by {off:+.3f}"


def test_the_cost_of_waves_is_what_makes_the_third_cta_dear() -> None:
    profile = h200()
    share = profile.compute.wave_share
    free = attrs.evolve(profile, compute=attrs.evolve(profile.compute, wave_share=attrs.evolve(share, share=(0, 0, 0))))
    for tokens, measured in zip(TOKENS, MEASURED["3 CTAs"].measured, strict=True):
        assert predicted(MEASURED["3 CTAs"], tokens, free) < measured - 0.09


def test_what_is_fitted_is_met() -> None:
    for tokens, measured in zip(TOKENS, MEASURED["3 CTAs"].measured, strict=True):
        assert predicted(MEASURED["3 CTAs"], tokens, h200()) == pytest.approx(measured, abs=0.0005)
    assert predicted(MEASURED["2 CTAs"], 256, h200()) == pytest.approx(1.017, abs=0.0005)
    between = [predicted(MEASURED["copy engine"], tokens, h200()) for tokens in (16, 64)]
    assert 1.032 < min(between) <= max(between) < 1.045


#: Llama-3-8B layers at 1, 16, 32, 64, 128, 256 tokens beside bulk copies that look ahead, 192 KiB in flight a CTA.
TWO_LONE = (1.057, 1.042, 1.045, 1.041, 1.053, 1.023)
ONE_OF_FOUR = (1.083, 1.066, 1.072, 1.074, 1.073, 1.044)


def test_other_products_lose_to_bytes_in_flight_what_these_do() -> None:
    """Both move 48 to 51 GB/s and leave 64 TPCs whole; the cluster of four has twice as many bytes in flight."""
    law = h200().uva
    assert law is not None
    more = [four - two for two, four in zip(TWO_LONE, ONE_OF_FOUR, strict=True)]
    assert sum(more) / len(more) == pytest.approx(law.drag_per_byte.value * 2 * BULK, abs=0.002)
    assert max(more) - min(more) < 0.015


def test_without_the_memory_a_copy_takes_a_copy_engine_would_cost_nothing() -> None:
    profile = h200()
    none = profile.memory.link_hbm_weight.with_value(0, "test")
    light = attrs.evolve(profile, memory=attrs.evolve(profile.memory, link_hbm_weight=none))
    assert predicted(MEASURED["copy engine"], 16, light) == 1


#: GB/s by (CTAs, cluster, bytes in flight, block): fresh lists, nothing beside.
ALONE = {
    (1, 1, 131072, 16384): 36.9, (1, 1, 131072, 32768): 38.3, (2, 1, 131072, 16384): 50.8,
    (2, 1, 131072, 32768): 50.8, (4, 1, 131072, 16384): 50.7, (8, 1, 16384, 16384): 44.9, (16, 1, 16384, 16384): 50.7,
    (32, 1, 16384, 16384): 50.4, (8, 1, 32768, 32768): 50.7, (2, 1, 131072, 65536): 50.6, (2, 1, 131072, 131072): 50.0,
    (2, 2, 131072, 16384): 34.6, (2, 2, 131072, 32768): 49.1, (4, 2, 131072, 16384): 50.6, (4, 1, 65536, 16384): 50.7,
    (1, 1, 65536, 16384): 21.9, (2, 1, 65536, 16384): 41.9,
}  # fmt: skip
#: The same beside decode products, mean over 16, 64 and 256 tokens and over two sets of shapes where both were tried.
BESIDE = {
    (1, 1, 131072, 16384): 32.9, (1, 1, 131072, 32768): 34.0, (2, 1, 131072, 16384): 48.1, (2, 1, 131072, 32768): 47.6,
    (3, 1, 131072, 16384): 49.8, (4, 1, 131072, 16384): 50.4, (4, 1, 65536, 16384): 49.2, (8, 1, 16384, 16384): 40.6,
    (16, 1, 16384, 16384): 49.0, (32, 1, 16384, 16384): 49.6, (2, 2, 131072, 16384): 31.2,
    (4, 2, 131072, 16384): 47.6,
}  # fmt: skip
#: (CTAs, cluster, bytes in flight, block), beside: how far off. Half the bytes in flight give more than half the rate
#: of one CTA: 64 KiB by 16 warps is another kernel. What a pair on one TPC loses to compute is not modelled.
RATE_MISSES = {((1, 1, 65536, 16384), False): -0.054, ((2, 2, 131072, 16384), True): 0.063}


@pytest.mark.parametrize(
    ("point", "beside"), [(point, False) for point in sorted(ALONE)] + [(point, True) for point in sorted(BESIDE)]
)
def test_a_measured_rate_of_a_gather_is_met_within_three_percent_or_named(
    point: tuple[int, int, int, int], *, beside: bool
) -> None:
    ctas, cluster, in_flight, block = point
    law = h200().uva
    assert law is not None
    rate = law.bytes_per_s(ctas, cluster=cluster, in_flight=in_flight, piece=block, beside=beside)
    off = rate / ((BESIDE if beside else ALONE)[point] * 1e9) - 1
    named = RATE_MISSES.get((point, beside))
    assert off == (pytest.approx(0, abs=0.03) if named is None else pytest.approx(named, abs=0.005))
