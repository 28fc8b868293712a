"""Passages: rows that a session continues, token by token, from the state of a shared prefill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import torch

from sparda_core.errors import ConfigError
from sparda_core.runtime import Session, StepResult

if TYPE_CHECKING:
    from sparda_core.runtimes.snapshot import RowSnapshot


class SnapshotSession(Protocol):
    """The part of a session that takes over a state computed elsewhere."""

    def adopt(self, snapshot: RowSnapshot) -> int:
        """A new row that holds the snapshot's tokens."""


@attrs.frozen(kw_only=True, eq=False)
class Passage:
    """A row to continue with given tokens (teacher-forced), and what is true after each of them.

    name      what it shows: "document", "passkey", "copy"
    snapshot  state to start from; passages may share one
    start     tokens of it that are kept
    feed      token ids, one a step
    targets   the id that truly follows each fed token
    """

    name: str
    snapshot: RowSnapshot
    start: int
    feed: tuple[int, ...]
    targets: tuple[int, ...]

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.start <= self.snapshot.tokens:
            raise ConfigError(f"passage {self.name!r}: start={self.start} must be in [1, {self.snapshot.tokens}]")
        if len(self.feed) != len(self.targets) or not self.feed:
            raise ConfigError(
                f"passage {self.name!r} feeds {len(self.feed)} tokens and has {len(self.targets)} targets; "
                "needs as many of both, >= 1"
            )

    @property
    def target_ids(self) -> torch.Tensor:
        """Targets, int64 [n]."""
        return torch.tensor(self.targets, dtype=torch.int64)


def windows_of(snapshot: RowSnapshot, tokens: Sequence[int], *, windows: int, steps: int) -> tuple[Passage, ...]:
    """The last windows x steps positions of a document, cut into rows that run side by side.

    tokens   the document; snapshot covers at least its first len(tokens) - 1
    Each window starts from the dense state of everything before it, so that one batch of `windows`
    rows scores windows * steps consecutive tokens in `steps` steps.
    """
    first = len(tokens) - 1 - windows * steps
    if windows < 1 or steps < 1 or first < 1:
        raise ConfigError(
            f"windows={windows} x steps={steps} must be >= 1 and leave a token before them: "
            f"the document has {len(tokens)}"
        )
    starts = range(first, len(tokens) - 1, steps)
    return tuple(
        Passage(
            name="document", snapshot=snapshot, start=at,
            feed=tuple(tokens[at : at + steps]), targets=tuple(tokens[at + 1 : at + steps + 1]),
        )
        for at in starts
    )  # fmt: skip


def answer_of(snapshot: RowSnapshot, name: str, prompt: Sequence[int], answer: Sequence[int]) -> Passage:
    """A task: its last prompt token and all but the last of its answer are fed, its answer is the target."""
    return Passage(
        name=name, snapshot=snapshot, start=len(prompt) - 1, feed=(prompt[-1], *answer[:-1]), targets=tuple(answer)
    )


def open_passages(session: Session, passages: Sequence[Passage]) -> tuple[int, ...]:
    """One row for each passage, in order; a snapshot that several share is adopted once and forked."""
    adopted: dict[int, int] = {}
    for passage in passages:
        if id(passage.snapshot) not in adopted:
            adopted[id(passage.snapshot)] = session.adopt(passage.snapshot)  # type: ignore[attr-defined]
    rows = []
    for passage in passages:
        row = session.fork(adopted[id(passage.snapshot)])
        session.crop(row, passage.start)
        rows.append(row)
    for row in adopted.values():
        session.retire(row)
    return tuple(rows)


def continue_passages(
    session: Session, passages: Sequence[Passage], rows: Sequence[int], *,
    before: Callable[[int], None] | None = None, after: Callable[[int, StepResult], None] | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Feed every passage to its row, a step for all of them at a time; a row is retired when its passage ends.

    before   called with the number of each step before it runs
    after    called with it and the step's result
    returns  logits [n, vocab] of each passage, after each of its tokens
    """
    logits: list[list[torch.Tensor]] = [[] for _ in passages]
    for step in range(max(len(p.feed) for p in passages)):
        running = [i for i, p in enumerate(passages) if step < len(p.feed)]
        if before:
            before(step)
        result = session.decode({rows[i]: passages[i].feed[step] for i in running})
        order = {row: at for at, row in enumerate(session.rows)}
        for i in running:
            logits[i].append(result.logits[order[rows[i]]].clone())
        if after:
            after(step, result)
        for i in running:
            if step + 1 == len(passages[i].feed):
                session.retire(rows[i])
    return [torch.stack(each) for each in logits]
