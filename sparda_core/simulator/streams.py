"""Streams: selections drawn from a locality, for many (layer, row, KV head) at once.

They obey the rules of every selection: ascending logical ids, none twice, none of the future, every
forced block among them.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from sparda_core.selection import Selection
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.locality import LocalityModel

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


class Streams:
    """P streams that decode side by side, all of one length.

    A row of at most `budget` blocks selects all of them. From then on a step keeps its free blocks but
    churn x budget, which are dropped at random, and takes as many from outside: each by a depth drawn from
    `reuse`, the oldest block where the draw is deeper than the row's stack. Fractions of a block are spread
    evenly: newcomers add up to churn x budget to within one block, over the streams of a step and over
    the steps of a stream. The block that leaves the local band leaves the selection.

    A stream begins in its steady state, with a stack in random order behind its first selection.
    """

    def __init__(self, model: LocalityModel, spec: BlockSpec, *, streams: int, tokens: int, seed: int) -> None:
        """tokens: those in each row's cache before the first step, >= 0; the same seed gives the same streams."""
        self._model, self._spec, self._count = model, spec, streams
        self._tokens, self._step = tokens, 0
        self._random = np.random.default_rng([seed, zlib.crc32(b"locality")])
        self._rows = np.arange(streams)[:, None]
        forced = spec.forced_blocks(tokens - 1) if tokens else ()
        others = np.setdiff1d(np.arange(spec.block_count(tokens), dtype=np.int32), np.array(forced, np.int32))
        shuffled: Ids = np.broadcast_to(others, (streams, others.size)).copy()
        chosen = min(spec.budget - len(forced), others.size)
        if chosen < others.size:
            shuffled = self._random.permuted(shuffled, axis=1)
        self._free, self._stack = shuffled[:, :chosen].copy(), shuffled[:, chosen:].copy()

    @property
    def tokens(self) -> int:
        """Tokens in each row's cache."""
        return self._tokens

    @property
    def opened(self) -> int:
        """The block that the last step's own token opened; -1 where it opened none."""
        last = self._tokens - 1
        return last // self._spec.block if self._step and last % self._spec.block == 0 else -1

    @property
    def stack(self) -> Ids:
        """int32 [P, M]: blocks outside the selection, the last dropped first."""
        return self._stack

    @property
    def selection(self) -> Selection:
        """int32 [P, n], ascending: what the last step selected, or what stands before the first; n <= budget."""
        forced = np.array(self._spec.forced_blocks(self._tokens - 1) if self._tokens else (), np.int32)
        return np.sort(np.concatenate((np.broadcast_to(forced, (self._count, forced.size)), self._free), axis=1))

    def step(self) -> Selection:
        """One more token in every row: int32 [P, n], its selection."""
        number, self._step = self._step, self._step + 1
        self._tokens += 1
        arriving = self._newcomers(number)
        picks = self._picks(arriving)
        dropped = self._exchange(picks)
        self._restack(picks, dropped, self._leaves_band())
        return self.selection

    def _newcomers(self, number: int) -> Ints:
        """int64 [P]: how many blocks each stream brings in."""
        rate, offset = self._model.churn * self._spec.budget, np.arange(self._count) / self._count
        first, last = (np.floor(n * rate + offset + 1e-9) for n in (number, number + 1))
        most = min(self._stack.shape[1], self._free.shape[1])
        return np.asarray(np.minimum(last - first, most), np.int64)

    def _picks(self, arriving: Ints) -> Ints:
        """int64 [P, K]: places in the stack of the newcomers, ascending, -1 last.

        The draws of a stream's step go through (0, 1) in equal strides, and so do the beginnings of all streams
        that bring in as many: the share that lies deeper than any slot count is as even as whole blocks allow.
        No two picks may meet: the deeper one moves on.
        """
        width = int(arriving.max(initial=0))
        each = np.arange(width)
        strides = each[::-1] - (width - arriving[:, None]) + self._beginnings(arriving)[:, None]
        shares = strides / np.maximum(arriving[:, None], 1)
        valid = each < arriving[:, None]
        size = self._spec.budget
        depth = self._model.depth(np.where(valid, np.clip(shares, 1e-15, 1.0), 1.0)) * size
        room = self._stack.shape[1]
        places = np.minimum(np.ceil(depth) - size - 1, room).clip(min=0).astype(np.int64)
        places = np.maximum.accumulate(places - each, axis=1) + each
        return np.where(valid, np.minimum(places, room - arriving[:, None] + each), -1)

    def _beginnings(self, arriving: Ints) -> npt.NDArray[np.float64]:
        """float64 [P] in (0, 1): evenly spaced over the streams of equal `arriving`, in random order."""
        begin, within = np.empty(self._count), self._random.random()
        for count in np.unique(arriving):
            alike = np.flatnonzero(arriving == count)
            begin[alike] = (self._random.permutation(alike.size) + within) / alike.size
        return begin

    def _exchange(self, picks: Ints) -> Ids:
        """Put the picked blocks in the place of free ones; int32 [P, K], the dropped ones, -1 last."""
        valid = picks >= 0
        width = picks.shape[1]
        if not width:
            return np.empty((self._count, 0), np.int32)
        out = self._random.random(self._free.shape).argsort(axis=1)[:, :width]
        rows = np.broadcast_to(self._rows, picks.shape)
        dropped = np.where(valid, self._free[rows, out], -1).astype(np.int32)
        self._free[rows[valid], out[valid]] = self._stack[rows[valid], picks[valid]]
        return dropped

    def _leaves_band(self) -> int:
        """The block that this step's opened block pushes out of the local band; -1 for none."""
        gone = self.opened - self._spec.local - 1
        return gone if self.opened >= 0 and gone >= self._spec.sink else -1

    def _restack(self, picks: Ints, dropped: Ids, gone: int) -> None:
        """Take the picked blocks out of the stack and lay the dropped ones on top."""
        if gone >= 0:
            column = np.full((self._count, 1), gone, np.int32)
            if self._spec.block_count(self._tokens) <= self._spec.budget:
                self._free = np.concatenate((self._free, column), axis=1)
            else:
                dropped = np.concatenate((column, dropped), axis=1)
        if not dropped.shape[1]:
            return
        size = self._stack.shape[1] + (dropped >= 0).sum(1)[0] - (picks >= 0).sum(1)[0]
        valid = picks >= 0
        stack = np.concatenate((dropped, self._stack), axis=1)
        keep = stack >= 0
        keep[np.broadcast_to(self._rows, picks.shape)[valid], picks[valid] + dropped.shape[1]] = False
        self._stack = stack[keep].reshape(self._count, size)
