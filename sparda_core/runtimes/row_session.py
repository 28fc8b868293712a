"""RowSession: what sessions on any device share: rows by id, their lengths and order, and the checks of a call."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from sparda_core.errors import ConfigError, RowError, SpardaError
from sparda_core.runtime import Session
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.shapes import ModelShape

_Made = TypeVar("_Made")
_IN_A_STEP = "session is in the middle of a step; wait until it has ended"


class RowSession(Session):
    """Keeps the length of every row, in batch order; where its data lies is the concrete session's business."""

    shape: ModelShape

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._next_row, self._working = 0, False
        self._closed = self._released = False  # released: closed, and to its end
        self._undoes: Callable[[], None] | None = None  # of work that has begun and was neither done nor undone

    @property
    def rows(self) -> tuple[int, ...]:
        """Row ids, in batch order."""
        self._finish_undoing()  # which may concern them
        return tuple(self._lengths)

    def length(self, row: int) -> int:
        """Tokens of a row in the cache."""
        self._check_row(row)
        return self._lengths[row]

    def reorder(self, rows: Sequence[int]) -> None:
        """Set the batch order; `rows` must name every row once."""
        self._check_idle()
        if len(rows) != len(self._lengths) or set(rows) != set(self._lengths):
            raise ConfigError(f"rows={list(rows)} must name every row once: {list(self._lengths)}")
        self._lengths = {row: self._lengths[row] for row in rows}

    @abc.abstractmethod
    def snapshot(self, row: int) -> RowSnapshot:
        """The row's cache, to be continued in another session of the same model, on any device."""

    @abc.abstractmethod
    def adopt(self, snapshot: RowSnapshot) -> int:
        """A new row that continues a snapshot; raises ConfigError where it is of another shape."""

    @property
    def used_bytes(self) -> dict[str, int]:
        """Bytes in use by tier, "host" and "device"."""
        self._check_open()
        return self._used_bytes()

    def close(self) -> None:
        """Wait for what runs and give memory back; closing twice is allowed, and ends what an interrupt cut short."""
        if self._released:
            return
        if self._working:
            raise SpardaError(_IN_A_STEP)
        # Not undone first: no row is left for it, and on a device that has failed it would fail for ever.
        self._closed, self._undoes = True, None
        self._lengths.clear()
        self._release()
        self._released = True

    @abc.abstractmethod
    def _used_bytes(self) -> dict[str, int]:
        """See `used_bytes`."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Stop lanes and let memory go; called with no row left, and again where it was interrupted."""

    def _as_a_whole(self, work: Callable[[], _Made], undo: Callable[[], None]) -> _Made:
        """What `work` returns. Whatever interrupts it, `undo` follows: now, or with the next call.

        undo  takes back what was done of the work, or does it to its end; may be done again, where it was interrupted
        """
        # No `with`: a signal that comes in as its end begins would skip it.
        try:
            self._undoes, self._working = undo, True
            made = work()
            self._undoes = None  # no call in between: work that returned is done
        except BaseException:
            self._undo()
            raise
        finally:
            self._working = False
        return made

    def _undo(self) -> None:
        if self._undoes is not None:
            self._undoes()
            self._undoes = None

    def _check_open(self) -> None:
        if self._closed:
            raise SpardaError("session is closed; open a new one")
        self._finish_undoing()

    def _finish_undoing(self) -> None:
        """Undo what was interrupted where its undoing was, too."""
        if self._undoes is not None and not self._working:
            try:
                self._working = True
                self._undo()
            finally:
                self._working = False

    def _check_idle(self) -> None:
        """What changes rows must not be called by an observer, nor from another thread, while a step runs."""
        self._check_open()
        if self._working:
            raise SpardaError(_IN_A_STEP)

    def _check_row(self, row: int) -> None:
        self._check_open()
        if row not in self._lengths:
            raise RowError(f"row={row!r} is not in this session; rows: {list(self._lengths)}")

    def _stepping(self, tokens: Mapping[int, int]) -> tuple[dict[int, int], torch.Tensor]:
        """Of a step of these rows, checked: row -> its length, in batch order, and their tokens int64 [rows]."""
        self._check_idle()
        for row in tokens:
            self._check_row(row)
        before = {row: length for row, length in self._lengths.items() if row in tokens}
        return before, self._check_tokens([tokens[row] for row in before])

    def _check_cut(self, row: int, tokens: int) -> None:
        self._check_row(row)
        if not _whole(tokens) or not 0 <= tokens <= self._lengths[row]:
            raise ConfigError(f"tokens={tokens!r} must be an integer from 0 to the row's length {self._lengths[row]}")

    def _check_chunk(self, chunk: int) -> None:
        if not _whole(chunk) or chunk < 1:
            raise ConfigError(f"chunk={chunk!r} must be an integer >= 1")

    def _check_tokens(self, tokens: Sequence[int]) -> torch.Tensor:
        if not len(tokens):
            raise ConfigError("tokens is empty; give at least one")
        try:
            given = torch.as_tensor(tokens)
        except (OverflowError, RuntimeError, TypeError, ValueError) as wrong:
            raise ConfigError(f"tokens must be a flat list of token ids: {wrong}") from wrong
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise ConfigError(f"tokens must be integers, not {given.dtype}: a token id is never rounded")
        ids = given.to(torch.int64)
        if ids.ndim != 1 or int(ids.min()) < 0 or int(ids.max()) >= self.shape.vocab:
            raise ConfigError(
                f"tokens must be ids between 0 and {self.shape.vocab - 1}; got {int(ids.min())}..{int(ids.max())}"
            )
        return ids


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
