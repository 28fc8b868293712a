"""Replays equal eager steps: after unrelated allocations, after growth, beside poisoned padded rows.

Without a GPU nothing is captured: there the short stories only show that they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparda_core.runtimes.gpu.graphs import Captured, StepKey
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.test_graphs import PAIRS, disturb, filled, opened
from tests.gpu.session.worlds import SPEC, close, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
OFFLOADED = [pair for pair in PAIRS if pair[1] != "resident"]
Told = tuple[dict[int, int], torch.Tensor]


def told(session: GpuSession, steps: int) -> Told:
    """Tokens and logits after some steps."""
    session.run(steps)
    return session.tokens(), session.last_logits().clone()


def same(got: Told, want: Told) -> bool:
    """To the bit: what two sessions answer that are captured alike."""
    return got[0] == want[0] and torch.equal(got[1], want[1])


def level(got: Told, want: Told, when: str) -> None:
    """Equal tokens, and logits up to the order of sums: libraries may choose otherwise in a capture."""
    assert got[0] == want[0], when
    close(got[1], want[1])


def add(session: GpuSession, length: int, seed: int) -> torch.Tensor:
    return session.prefill(session.add(), prompt(length, seed))


def retire(session: GpuSession, rows: tuple[int, ...]) -> None:
    for row in rows:
        session.retire(row)


#: What changes between runs of steps: buckets, pages, places. Each begins where the one before ended.
GROWTH: dict[str, Callable[[GpuSession], Any]] = {
    "a second row: another bucket": lambda s: add(s, 33, 1),
    "a third and a fourth: the largest": lambda s: [add(s, 9, 2), s.fork(s.rows[0])],
    "a fork that writes its own page": lambda s: s.crop(s.rows[3], 50),
    "back to the second bucket": lambda s: retire(s, s.rows[1:3]),
    "a longer prompt: more pages": lambda s: s.prefill(s.rows[0], prompt(200, 5)),
    "the first bucket again": lambda s: s.retire(s.rows[1]),
    "another budget": lambda s: s.set_budget(s.spec.budget - 1),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS)
def test_replays_after_growth_are_the_eager_steps(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    kept: list[torch.Tensor] = []
    with (
        opened(selector, runtime, options, places=4) as replayed,
        opened(selector, runtime, options, places=4, graph=False) as eager,
    ):
        for session in (replayed, eager):
            add(session, 62, 0)
        level(told(replayed, 40), told(eager, 40), "before anything grew")
        for name, grow in GROWTH.items():
            for session in (replayed, eager):
                grow(session)
                session.run(1, dict.fromkeys(session.rows, 7))
                disturb(kept)
            for _ in range(3):
                level(told(replayed, 16), told(eager, 16), name)
                disturb(kept)
        replays = replayed.machinery._replays
        assert isinstance(replays, Captured)
        assert replays.captured == (StepKey(1),), "of the new budget only the last bucket was asked for"


def poison(session: GpuSession) -> None:
    """Whatever belongs to places without a row holds NaN, or numbers that no memory has."""
    tiers, used = session.machinery.tiers, len(session.rows)
    for tier in tiers.layers:
        for values in (tier.entries, tier.ring, tier.scores):
            values[used:] = float("nan")
        tier.choice.blocks[used:], tier.choice.counts[used:] = 2**30, 2**30
        if tier.slots is not None and tier.diff is not None:
            by_place = tier.slots.array.view(tier.choice.counts.shape[0], -1)
            by_place[used:] = float("nan")
            tier.slots.held[used:], tier.slots.used[used:], tier.slots.where[used:] = 2**30, 2**30, 2**30
            tier.diff.physical[used:], tier.diff.tail[used:] = 2**30, 2**30
    tiers.rows.token[used:] = -(2**40)
    session.machinery._attention.fill_(float("nan"))


@pytest.mark.parametrize(("selector", "runtime", "options"), OFFLOADED if ON_GPU else OFFLOADED[:1])
def test_padded_rows_poisoned_between_replays_are_never_looked_at(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    steps, rounds = (8, 6) if ON_GPU else (1, 2)
    with opened(selector, runtime, options, places=4) as clean, opened(selector, runtime, options, places=4) as other:
        for session in (clean, other):
            filled(session, 40, 20, 9) if ON_GPU else filled(session, 40)
        for number in range(rounds):
            poison(other)
            assert same(told(other, steps), told(clean, steps)), f"round {number}"


def test_a_row_in_use_that_is_poisoned_would_be_noticed() -> None:
    """The companion: what is poisoned above is what a step reads."""
    with opened("forecast", "resident", {}, places=1) as session, opened("forecast", "resident", {}, places=1) as other:
        for each in (session, other):
            filled(each, 40)
        for tier in session.machinery.tiers.layers:
            tier.ring[:1] = float("nan")
        steps = SPEC.stride  # one of them completes an entry, from the keys of the ring
        session.run(steps)
        other.run(steps)
        entries = [[tier.entries[0] for tier in each.machinery.tiers.layers] for each in (session, other)]
        assert not all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*entries, strict=True))
