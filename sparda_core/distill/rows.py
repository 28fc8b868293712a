"""Rows of a training run: which tokens the frozen model reads at once, and where documents begin in them.

A corpus is one long list of tokens and where each document ends. Rows are cut from it in one of three ways:

- `packed`   documents one behind the other; each starts at position 0 again and sees nothing of the others
- `apart`    one document, or one piece of a long one, a row
- `joined`   windows of the whole list, attended across documents, as the published training does

Row, order and query positions are functions of the seed and a running number, so that nothing has to be
remembered to go on with a run, whatever number of processes shares it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.errors import ConfigError

MODES = ("packed", "apart", "joined")


@attrs.frozen(eq=False)
class Row:
    """What is read at once: ids int64 [T], and the lengths of the documents in it, in order; they add up to T."""

    ids: torch.Tensor
    lengths: tuple[int, ...]

    def eligible(self, first_position: int) -> torch.Tensor:
        """Int64 [E], ascending: places in the row that lie at least `first_position` tokens into their document."""
        starts = np.cumsum((0, *self.lengths[:-1]))
        parts = [torch.arange(s + first_position, s + n) for s, n in zip(starts, self.lengths, strict=True)
                 if n > first_position]  # fmt: skip
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


@attrs.frozen(eq=False)
class Corpus:
    """Tokens of whole documents: ids int [N] (an array, perhaps mapped from a file), ends int64 [documents], ascending.

    names  of the documents, or none where there are too many to keep
    """

    ids: np.ndarray
    ends: np.ndarray
    names: tuple[str, ...] = ()

    @classmethod
    def one(cls, ids_N: torch.Tensor) -> Corpus:
        """A corpus that is a single document."""
        return cls(ids=ids_N.cpu().numpy(), ends=np.array([len(ids_N)]))

    @functools.cached_property
    def sha256(self) -> str:
        """Over tokens (as int32) and the ends of documents (as int64)."""
        digest = hashlib.sha256(self.ends.astype("<i8").tobytes())
        for at in range(0, len(self.ids), 1 << 22):
            digest.update(np.ascontiguousarray(self.ids[at : at + (1 << 22)], dtype="<i4").tobytes())
        return digest.hexdigest()


class Rows:
    """All rows of a corpus, in the order of its tokens."""

    def __init__(self, corpus: Corpus, *, window: int, mode: str, least: int) -> None:
        """Cut rows of at most `window` tokens; pieces of fewer than `least` tokens are left out.

        raises  ConfigError where no row is left
        """
        if mode not in MODES:
            raise ConfigError(f"documents={mode!r} must be one of {', '.join(MODES)}")
        self.corpus = corpus
        self._pieces: list[list[tuple[int, int]]] = list(_CUTS[mode](corpus.ends, window, least))
        if not self._pieces:
            longest = int(np.diff(corpus.ends, prepend=0).max(initial=0))
            raise ConfigError(
                f"the text has {len(corpus.ids)} tokens, its longest document {longest}; with documents={mode!r} "
                f"one row needs >= {window if mode == 'joined' else least} (window={window}): add text"
            )

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> Row:
        parts = self._pieces[index]
        ids = np.concatenate([self.corpus.ids[a:b] for a, b in parts]).astype(np.int64)
        return Row(ids=torch.from_numpy(ids), lengths=tuple(b - a for a, b in parts))

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(b - a for parts in self._pieces for a, b in parts)


def _joined(ends: np.ndarray, window: int, _least: int) -> Iterator[list[tuple[int, int]]]:
    """Windows of the whole list; what is left at its end is not read."""
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total - window + 1, window):
        yield [(start, start + window)]


def _apart(ends: np.ndarray, window: int, least: int) -> Iterator[list[tuple[int, int]]]:
    """Every document by itself, in pieces of `window` tokens."""
    start = 0
    for end in ends.tolist():
        for at in range(start, end, window):
            if min(at + window, end) - at >= least:
                yield [(at, min(at + window, end))]
        start = end


def _packed(ends: np.ndarray, window: int, least: int) -> Iterator[list[tuple[int, int]]]:
    """Fill row after row; a document that does not fit is cut where the row ends, if both sides are worth it."""
    row: list[tuple[int, int]] = []
    room, start = window, 0
    for end in ends.tolist():
        while end - start >= least:
            if room < min(least, end - start):
                yield row
                row, room = [], window
            stop = min(end, start + room)
            row.append((start, stop))
            room -= stop - start
            start = stop
        start = end
    if row:
        yield row


_CUTS = {"packed": _packed, "apart": _apart, "joined": _joined}


class Draw:
    """Row and query positions number `index`, from the seed alone."""

    def __init__(self, rows: Rows, config: TrainConfig) -> None:
        self.rows, self._config = rows, config
        self._turn, self._order = -1, torch.zeros(0, dtype=torch.int64)

    def __call__(self, index: int) -> tuple[Row, torch.Tensor]:
        """The row and ascending positions, int64 [Q]. Every row is read once before any is read again."""
        config = self._config
        turn, at = divmod(index, len(self.rows))
        if turn != self._turn:
            source = torch.Generator().manual_seed((config.seed * 1_000_003 + turn) % 2**63)
            self._turn, self._order = turn, torch.randperm(len(self.rows), generator=source)
        row = self.rows[int(self._order[at])]
        source = torch.Generator().manual_seed(((config.seed + 1) * 7_368_787 + index) % 2**63)
        places = row.eligible(config.first_position)
        chosen = torch.randperm(len(places), generator=source)[: config.positions].sort().values
        return row, places[chosen]


def shared_out(count: int, rank: int, size: int) -> Sequence[int]:
    """Of the numbers 0 .. count - 1, those that process `rank` of `size` works on."""
    return range(rank, count, size)
