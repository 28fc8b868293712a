from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.selection import check_selection, fresh_blocks
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.residency import Pools
from sparda_core.simulator.streams import Streams
from tests.profiles import share

PAPER = BlockSpec(sink=1, local=32, budget=96)
SMALL = BlockSpec(block=4, window=4, stride=2, sink=1, local=1, budget=8)


def model_of(churn: float, reuse: object = ((1, 1), (2, 0.5)), tail: float | None = None) -> LocalityModel:
    return LocalityModel(name="made", title="made", source="made", churn=churn, reuse=reuse, tail=tail)  # type: ignore[arg-type]


def miss_share(model: LocalityModel, *, slots: int, policy: str, streams: int, steps: int, warm_up: int) -> float:
    drawn = Streams(model, PAPER, streams=streams, tokens=50_000, seed=3)
    pools = Pools(streams=streams, slots=slots, policy=policy, blocks=2048)
    pools.warm(drawn.selection, drawn.stack)
    misses = [pools.play(drawn.step(), np.full(streams, drawn.opened)) for _ in range(warm_up + steps)]
    return float(np.mean(misses[warm_up:])) / PAPER.budget


specs = st.builds(
    lambda sink, local, free: BlockSpec(
        block=4, window=4, stride=2, sink=sink, local=local, budget=sink + local + 1 + free
    ),
    st.integers(0, 2), st.integers(1, 3), st.integers(0, 6),
)  # fmt: skip


@settings(deadline=None, max_examples=share(60))
@given(
    spec=specs, churn=st.floats(0, 1), tokens=st.integers(0, 120), seed=st.integers(0, 5),
    reuse=st.sampled_from((((1, 1), (2, 0.5)), ((1, 1), (1.01, 0.01)), ((1, 1), (9, 0.99)))),
)  # fmt: skip
def test_every_selection_is_lawful_from_an_empty_row_to_a_long_one(
    spec: BlockSpec, churn: float, tokens: int, seed: int, reuse: object
) -> None:
    """The reuses are an easy one, one whose draws all meet at the top of the stack, and one beyond its end."""
    model = model_of(min(churn, spec.free / spec.budget), reuse)
    drawn = Streams(model, spec, streams=3, tokens=tokens, seed=seed)
    for position in range(tokens, tokens + 24):
        chosen = drawn.step()
        assert drawn.opened == (position // spec.block if position % spec.block == 0 else -1)
        assert chosen.shape == (3, min(spec.budget, position // spec.block + 1))
        assert chosen.dtype == np.int32
        check_selection(chosen[:, None, None], spec=spec, positions=np.full((3, 1), position))
        every = np.sort(np.concatenate((chosen, drawn.stack), axis=1), axis=1)
        assert (every == np.arange(position // spec.block + 1)).all(), "a block was lost or doubled"


@settings(deadline=None, max_examples=share(40))
@given(churn=st.floats(0, 0.6), streams=st.integers(1, 9), steps=st.integers(1, 9))
def test_newcomers_add_up_to_the_churn_within_one_block_a_step_and_a_stream(
    churn: float, streams: int, steps: int
) -> None:
    drawn = Streams(model_of(churn), PAPER, streams=streams, tokens=20_000, seed=1)
    before, fresh = drawn.selection, np.zeros((steps, streams))
    for step in range(steps):
        chosen = drawn.step()
        fresh[step] = fresh_blocks(chosen, before) - (drawn.opened >= 0)
        before = chosen
    assert abs(fresh.sum() - churn * 96 * streams * steps) <= 1
    assert (abs(fresh.sum(1) - churn * 96 * streams) <= 1).all()
    assert (abs(fresh.sum(0) - churn * 96 * steps) <= 1).all()


def test_newcomers_lie_as_deep_in_the_stack_as_the_reuse_says() -> None:
    model = model_of(0.05, ((1, 1), (1.5, 0.6), (4, 0.2)), tail=1.5)
    drawn = Streams(model, PAPER, streams=64, tokens=131_000, seed=2)
    depths = []
    for _ in range(60):
        stack = drawn.stack.copy()
        before = drawn.selection
        chosen = drawn.step()
        for old, new, order in zip(before, chosen, stack, strict=True):
            fresh = np.setdiff1d(new, old)
            depths += [96 + 1 + int(np.flatnonzero(order == block)[0]) for block in fresh if block != drawn.opened]
    for selections in (1.25, 1.5, 2, 3, 4, 8, 16):
        deeper = float(np.mean(np.array(depths) > selections * 96))
        assert deeper == pytest.approx(float(model.survival(selections)), abs=0.005)


@pytest.mark.parametrize(("times", "published"), [(1, 0.300), (2, 0.134), (4, 0.067)])
def test_the_default_locality_misses_what_hisparse_published_for_an_lru_buffer(times: int, published: float) -> None:
    got = miss_share(load_locality("hisparse"), slots=96 * times, policy="lru", streams=48, steps=60, warm_up=20)
    assert got == pytest.approx(published, abs=0.005)


def test_the_figures_would_notice_another_reuse() -> None:
    flat = attrs.evolve(load_locality("hisparse"), reuse=((1, 1), (2, 0.8), (4, 0.6)))
    assert miss_share(flat, slots=192, policy="lru", streams=16, steps=20, warm_up=5) > 0.2


@pytest.mark.parametrize("slots", [96, 192, 384])
def test_under_last_selection_misses_are_the_churn_whatever_the_slots(slots: int) -> None:
    got = miss_share(model_of(0.11), slots=slots, policy="last-selection", streams=25, steps=16, warm_up=0)
    assert got == pytest.approx(0.11, abs=1e-4)


def test_with_as_many_slots_as_the_budget_the_policies_miss_alike() -> None:
    one, other = (
        miss_share(model_of(0.11), slots=96, policy=policy, streams=10, steps=10, warm_up=0)
        for policy in ("last-selection", "lru")
    )
    assert one == other


def test_misses_under_lru_only_fall_with_more_slots() -> None:
    shares = [
        miss_share(load_locality("nosa"), slots=slots, policy="lru", streams=16, steps=24, warm_up=4)
        for slots in (96, 112, 144, 192, 288, 384, 768)
    ]
    assert shares == sorted(shares, reverse=True)


def test_with_a_slot_for_every_block_nothing_is_missed() -> None:
    assert miss_share(model_of(0.3), slots=800, policy="lru", streams=4, steps=10, warm_up=0) == 0


def test_a_start_in_the_steady_state_needs_no_long_warm_up() -> None:
    early, late = (
        miss_share(load_locality("hisparse"), slots=192, policy="lru", streams=32, steps=16, warm_up=warm_up)
        for warm_up in (4, 150)
    )
    assert early == pytest.approx(late, abs=0.003)


@given(share=st.floats(1e-9, 1), tail=st.none() | st.floats(0.6, 5))
def test_depth_undoes_survival(share: float, tail: float | None) -> None:
    model = model_of(0.1, ((1, 1), (1.5, 0.6), (4, 0.2)), tail)
    assert float(model.survival(model.depth(share))) == pytest.approx(share, rel=1e-6)


def test_survival_goes_through_its_points_and_falls_as_a_power_beyond_them() -> None:
    model = model_of(0.1, ((1, 1), (2, 0.5), (4, 0.1)), tail=2)
    assert model.survival([0, 1, 2, 4, 8]) == pytest.approx([1, 1, 0.5, 0.1, 0.025])
    assert model.survival(2**0.5) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"churn": -0.1}, r"churn=-0.1 must be in \[0, 1\]"),
        ({"churn": float("nan")}, "churn=nan must be in"),
        ({"reuse": ()}, r"must start at \[1, 1\]"),
        ({"reuse": ((2, 1), (3, 0.5))}, r"must start at \[1, 1\]"),
        ({"reuse": ((1, 1), (2, 0.5), (2, 0.4))}, "depths rise"),
        ({"reuse": ((1, 1), (2, 0.5), (3, 0.6))}, "shares never do"),
        ({"reuse": ((1, 1), (2, 0.0))}, r"shares in \(0, 1\]"),
        ({"reuse": ((1, 1), (float("inf"), 0.5))}, "finite depths"),
        ({"reuse": 3}, "must be a list of"),
        ({"reuse": ((1, 1),)}, "tail is missing"),
        ({"tail": 0.0}, "tail=0.0 must be > 0"),
    ],
)
def test_knobs_that_mean_nothing_are_refused(knobs: dict[str, object], told: str) -> None:
    values: dict[str, object] = {"churn": 0.1, "reuse": ((1, 1), (2, 0.5)), "tail": None} | knobs
    with pytest.raises(ConfigError, match=told):
        model_of(**values)  # type: ignore[arg-type]


def test_more_churn_than_free_blocks_is_refused_with_the_bound() -> None:
    with pytest.raises(ConfigError, match=r"churn=0.7 must be <= 0.6458: of budget=96 only 62 blocks are free"):
        model_of(0.7).check(PAPER, 131_072)


def test_a_row_too_short_for_distinct_newcomers_is_refused_with_the_length_that_does() -> None:
    model = model_of(0.5)
    with pytest.raises(ConfigError, match=r"context=40 has 2 blocks outside .* raise context to 45"):
        model.check(SMALL, 40)
    model.check(SMALL, 45)
    model.check(SMALL, 32)
