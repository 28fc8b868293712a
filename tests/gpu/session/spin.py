"""A kernel that takes its time: put before operations of a step, it makes either lane arbitrarily late."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before Triton

import triton  # isort: skip
import triton.language as tl

from sparda_core.plan import Lane, Op

Issue = Callable[[Op], None]
#: Rounds of a long delay: about a millisecond, hundreds of times a kernel of the tests' models, and longer than the
#: host takes to issue a layer of one.
LONG = 60_000 if DEVICE.type == "cuda" else 3
ROUNDS = (LONG // 30, LONG // 8, LONG)


@triton.jit
def _spin_kernel(state, rounds):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Rounds of xorshift: each needs the one before."""
    x = tl.load(state)
    for _ in range(rounds):
        x = x ^ (x << 13)
        x = x ^ (x >> 17)
        x = x ^ (x << 5)
    tl.store(state, x)


class Spins:
    """Wraps the bindings of a step: some operations begin late, which ones and by how much is drawn from a seed.

    share  of operations that are delayed
    only   kinds that may be delayed, always and for long; None: any, at random
    """

    def __init__(self, seed: int, *, share: float = 0.3, only: Sequence[str] | None = None) -> None:
        self._draw, self._share, self._only = random.Random(seed), share, only  # noqa: S311  a test's
        self._state = {lane: torch.full((1,), 2463534242 - 2**32, dtype=torch.int32, device=DEVICE) for lane in Lane}
        self.delayed: dict[str, int] = {}  # operation -> rounds

    def around(self, table: Mapping[str, Issue]) -> dict[str, Issue]:
        """The same bindings; to be captured like any."""
        return {kind: self._around(run) for kind, run in table.items()}

    def _around(self, run: Issue) -> Issue:
        def late(op: Op) -> None:
            if op.name not in self.delayed:
                self.delayed[op.name] = self._rounds(op)
            if self.delayed[op.name]:
                _spin_kernel[(1,)](self._state[op.lane], self.delayed[op.name], num_warps=1)
            run(op)

        return late

    def _rounds(self, op: Op) -> int:
        if self._only is not None:
            return LONG if op.kind in self._only else 0
        return self._draw.choice(ROUNDS) if self._draw.random() < self._share else 0
