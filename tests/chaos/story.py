"""A story of one session, told act by act, and what must be true of it when an act is spoilt.

An act that raises must have changed nothing, or all that it changes: then the story goes on, and every answer after
it is that of a story in which nothing went wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core.runtimes.row_session import RowSession
from sparda_core.runtimes.session import CpuSession
from tests.agreement.worlds import SPEC, TOKENS, pair

#: Selector, runtime, options of the runtime: each keeps other things for a row.
PAIRS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("forecast", "offload-prefetch", {}),
    ("infinigen", "offload-prefetch", {"policy": "lru", "slots": 9}),
    ("nosa", "offload-sync", {}),
    ("window", "resident", {}),
)
Answer = torch.Tensor | None
Act = Callable[[Any], Answer]


@attrs.frozen
class State:
    """What the caller can see of a session: lengths of the rows in batch order, budget, bytes held on the host."""

    lengths: tuple[int, ...]
    budget: int
    host_bytes: int

    @classmethod
    def of(cls, session: RowSession) -> State:
        """The state now."""
        lengths = tuple(session.length(row) for row in session.rows)
        return cls(lengths, session.spec.budget, session.used_bytes["host"])

    def like(self, other: State) -> bool:
        """Whether rows and budget are those of the other."""
        return (self.lengths, self.budget) == (other.lengths, other.budget)


def _step(*tokens: int) -> Act:
    """Decode one token of every row, in batch order."""
    return lambda session: session.decode(dict(zip(session.rows, tokens, strict=True))).logits.clone()


def quietly(act: Callable[[Any], Any]) -> Act:
    """An act without an answer."""

    def run(session: Any) -> None:
        act(session)

    return run


#: Two rows that share pages, a third, a row of another session's cache; budgets, crops, blocks that fill up.
ACTS: dict[str, Act] = {
    "add": quietly(lambda s: s.add()),
    "prefill": lambda s: s.prefill(s.rows[0], TOKENS[:45], chunk=17),
    "step": _step(5),
    "add another": quietly(lambda s: s.add()),
    "prefill by choice": lambda s: s.prefill(s.rows[1], TOKENS[60:83], mode="selector", chunk=9),
    "step of two": _step(7, 8),
    "fork": quietly(lambda s: s.fork(s.rows[0])),
    "step of three": _step(1, 2, 3),
    "crop": quietly(lambda s: s.crop(s.rows[0], 37)),
    "step after a crop": _step(4, 5, 6),
    "more blocks": quietly(lambda s: s.set_budget(SPEC.budget + 1)),
    "step with more blocks": _step(9, 9, 9),
    "fewer blocks": quietly(lambda s: s.set_budget(SPEC.budget)),
    "adopt": quietly(lambda s: s.adopt(s.snapshot(s.rows[1]))),
    "step of four": _step(3, 1, 4, 1),
    "retire": quietly(lambda s: s.retire(s.rows[1])),
    "step of the rest": _step(6, 2, 8),
}


def opened(selector: str, runtime: str, options: Mapping[str, Any]) -> CpuSession:
    """A session in which the story is told."""
    return pair(selector, runtime, runtime_options=dict(options), keep_queries=20, threads=1).open_cpu()


def told(session: RowSession, acts: Mapping[str, Act] = ACTS) -> tuple[list[Answer], list[State]]:
    """Answers, and the state after each act."""
    answers, states = [], []
    for act in acts.values():
        answers.append(act(session))
        states.append(State.of(session))
    return answers, states


def plainly(selector: str, runtime: str, options: Mapping[str, Any]) -> tuple[list[Answer], list[State]]:
    """The story in which nothing goes wrong."""
    with opened(selector, runtime, options) as session:
        return told(session)


def retold(
    session: RowSession, spoilt: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]],
    failures: tuple[type[BaseException], ...], want: tuple[list[Answer], list[State]], *,
    acts: Mapping[str, Act] = ACTS, within: float = 0.0,
) -> int:  # fmt: skip
    """Tell the story with some acts spoilt, each in a context of its own; how many of them raised one of `failures`.

    A spoilt act that raised is told again, unless it was done although it raised. Raises AssertionError where a state
    or an answer is not that of the plain story, `within` so much.
    """
    failed = 0
    before = State.of(session)
    for (name, act), answer, after in zip(acts.items(), *want, strict=True):
        got: Answer = None
        done = False
        if name in spoilt:
            try:
                with spoilt[name]():
                    got = act(session)
                done = True
            except failures:
                failed += 1
                now = State.of(session)
                assert now.like(before) or now.like(after), f"{name!r} left {now}, neither {before} nor {after}"
                # A page that a fork shared may have become the row's own already.
                assert now.host_bytes <= max(before.host_bytes, after.host_bytes), f"{name!r} left pages: {now}"
                done = not now.like(before)
        if not done:
            got = act(session)
        assert State.of(session) == after, f"after {name!r}"
        if answer is not None and got is not None:  # None: it was made, and nobody heard the answer
            np.testing.assert_allclose(got.numpy(), answer.numpy(), within, within, err_msg=f"answer of {name!r}")
        before = after
    return failed
