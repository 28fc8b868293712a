"""Captured steps: the same as eager ones, whatever happens between replays and however slow a lane is.

Without a GPU nothing is captured: there these tests only show that they run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.early import early_of
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.engines import Uva
from sparda_core.runtimes.gpu.graphs import Captured, StepKey, bucket_of
from sparda_core.runtimes.gpu.machinery import Machinery
from sparda_core.runtimes.gpu.options import CopySize, GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.gpu.tier import LayerTier
from sparda_core.shapes import ModelShape
from tests.gpu.session.worlds import SHAPE, SPEC, WIDE, close, models, prompt, same_facts
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
STEPS, ROUNDS = (64, 8) if ON_GPU else (1, 1)
#: About a tenth of a millisecond: much longer than any kernel of a tiny model.
SPIN_CYCLES = 200_000

PAIRS: list[tuple[str, str, dict[str, Any]]] = [
    ("forecast", "offload-prefetch", {"policy": "lru", "slots": 6}),
    ("forecast", "offload-prefetch", {}),
    ("query", "offload-sync", {}),
    ("infinigen", "offload-prefetch", {"policy": "lru"}),
    ("forecast", "resident", {}),
    ("window", "offload-sync", {}),
    ("forecast", "offload-prefetch", {"engine": "copy-engine"}),
    ("forecast", "offload-prefetch", {"engine": "cpu-gather"}),
]
#: Those of the engine that can, by one copy a step as well.
ONE_COPY = [*((*pair, {}) for pair in PAIRS), *((*pair, {"copy_launch": "step"}) for pair in PAIRS[:-2])]


def opened(
    selector: str, runtime: str, options: dict[str, Any], *, graph: bool | None = None, places: int = 3,
    shape: ModelShape = WIDE if ON_GPU else SHAPE, lead: int = 1, **more: Any,
) -> GpuSession:  # fmt: skip
    chosen = {"places": places, "tokens": 720 if ON_GPU else 96, "page_blocks": 2, "graph": graph, **more}
    return GpuSession(
        models(shape, lead=lead)[1], runtime=RUNTIMES.make(runtime, **options),
        selector=SELECTORS.make(selector, **({"lead": lead} if lead != 1 else {})), spec=SPEC,
        options=GpuOptions.of(**chosen),
    )  # fmt: skip


def filled(session: GpuSession, *lengths: int) -> list[int]:
    rows = []
    for seed, length in enumerate(lengths):
        rows.append(session.add())
        session.prefill(rows[-1], prompt(length, seed))
    return rows


def spin() -> None:
    if ON_GPU:
        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]


def slow_compute(machinery: Machinery) -> None:
    """Every layer's new token is seen late: the compute lane is behind the copies."""
    observe = machinery.half.observe

    def late(view: Any) -> None:
        spin()
        observe(view)

    machinery.half.observe = late  # type: ignore[method-assign]


def same_outcome(got: GpuSession, want: GpuSession) -> None:
    """Next tokens, facts and logits of the last step."""
    assert got.tokens() == want.tokens()
    same_facts(got.last_facts(), want.last_facts())
    close(got.last_logits(), want.last_logits())


def disturb(kept: list[torch.Tensor]) -> None:
    """Unrelated allocations of many sizes, filled with NaN; some go back to the pool at once."""
    made = [torch.full((1 << power,), float("nan"), device=DEVICE) for power in range(4, 22)]
    kept[:] = made[::2]


@pytest.mark.parametrize(("selector", "runtime", "options", "more"), ONE_COPY if ON_GPU else ONE_COPY[:1])
def test_captured_steps_equal_eager_ones_over_many_blocks(
    selector: str, runtime: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    kept: list[torch.Tensor] = []
    with (
        opened(selector, runtime, options, **more) as replayed,
        opened(selector, runtime, options, graph=False) as eager,
    ):
        for session in (replayed, eager):
            filled(session, 62, 9)
        for _ in range(ROUNDS):
            for session in (replayed, eager):
                session.run(STEPS)
                disturb(kept)
            assert replayed.tokens() == eager.tokens()
            same_facts(replayed.last_facts(), eager.last_facts())
            close(replayed.last_logits(), eager.last_logits())
        assert isinstance(replayed._machinery._replays, Captured) == ON_GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS)
@pytest.mark.parametrize("graph", [True, False])
def test_steps_whose_kernels_start_early_are_bit_for_bit_the_others(
    selector: str, runtime: str, options: dict[str, Any], *, graph: bool
) -> None:
    seen = []
    for early in range(early_of(DEVICE, None) + 1):
        with opened(selector, runtime, options, graph=graph, early=early) as session:
            filled(session, 62, 9)
            steps = []
            for _ in range(8):
                session.run(8)
                steps.append((session.tokens(), session.last_logits().clone()))
            seen.append(steps)
    for others in seen[1:]:
        for (tokens, logits), (want, plain) in zip(others, seen[0], strict=True):
            assert tokens == want
            assert torch.equal(logits, plain)


def test_rows_come_and_go_without_a_new_capture() -> None:
    with opened("forecast", "offload-prefetch", {"policy": "lru"}, places=4) as session:
        first, second, third = filled(session, 30, 20, 9)
        session.run(STEPS, dict.fromkeys(session.rows, 3))
        before = len(session._machinery._bound)
        session.retire(first)
        fresh = session.add()
        session.prefill(fresh, prompt(12, 5))
        session.crop(second, 17)
        with pytest.raises(ConfigError, match=rf"first token of rows \[{second}\]"):
            session.run(2)  # the crop took it away
        session.decode({second: 8, third: 4})
        assert len(session._machinery._bound) == before == 1


def test_buckets_are_powers_of_two_up_to_all_places() -> None:
    assert [bucket_of(rows, 6) for rows in range(1, 7)] == [1, 2, 4, 4, 6, 6]
    with opened("window", "resident", {}, places=3) as session:
        for seed, _ in enumerate(range(3)):
            row = session.add()
            session.prefill(row, prompt(5 + seed, seed))
            session.run(3 if ON_GPU else 1)
        assert set(session._machinery._bound) == {StepKey(1), StepKey(2), StepKey(3)}


@pytest.mark.parametrize("slow", ["copies", "compute"])
@pytest.mark.parametrize(
    ("selector", "runtime"), [("forecast", "offload-prefetch"), ("query", "offload-sync")][: None if ON_GPU else 1]
)
def test_a_slow_lane_changes_nothing(slow: str, selector: str, runtime: str) -> None:
    class SlowUva(Uva):
        def fetch(self, tier: LayerTier, size: CopySize) -> None:
            if slow == "copies":
                spin()
            super().fetch(tier, size)

    with opened(selector, runtime, {}) as plain, opened(selector, runtime, {}) as delayed:
        machinery = delayed._machinery
        machinery.engine = SlowUva()
        if slow == "compute":
            slow_compute(machinery)
        for session in (plain, delayed):
            filled(session, 70, 33) if ON_GPU else filled(session, 70)
            session.run(STEPS)
        same_outcome(delayed, plain)


def test_what_lies_in_empty_places_is_never_looked_at() -> None:
    with opened("forecast", "offload-prefetch", {}, places=4) as clean, opened(
        "forecast", "offload-prefetch", {}, places=4
    ) as poisoned:
        for session in (clean, poisoned):
            filled(session, 40, 20, 9) if ON_GPU else filled(session, 40)
        tiers, machinery = poisoned._machinery.tiers, poisoned._machinery
        used = len(poisoned.rows)
        for tier in tiers.layers:
            tier.entries[used:] = float("nan")
            tier.ring[used:] = float("nan")
            tier.scores[used:] = float("nan")
            tier.choice.blocks[used:] = 2**30
            tier.choice.counts[used:] = 2**30
        tiers.rows.token[used:] = -(2**40)
        machinery._attention.fill_(float("nan"))
        for session in (clean, poisoned):
            session.run(STEPS)
        assert poisoned.tokens() == clean.tokens()
        close(poisoned.last_logits(), clean.last_logits())


@pytest.mark.gpu
def test_memory_stays_flat_over_thousands_of_steps() -> None:
    with opened("forecast", "offload-prefetch", {"policy": "lru"}) as session:
        (row,) = filled(session, 40)
        session.run(16)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(20):
            session.run(500)
            session.crop(row, 60)
            session.run(1, {row: 5})
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


@pytest.mark.gpu
def test_a_session_opened_while_another_has_graphs_captures_too() -> None:
    with opened("forecast", "offload-prefetch", {}) as one:
        filled(one, 30)
        one.run(4)
        other = opened("query", "offload-sync", {})
        filled(other, 30)
        other.run(4)
        other.close()
        del other
        one.set_budget(SPEC.budget - 1)
        one.run(4, dict.fromkeys(one.rows, 3))
        one.run(4)
