"""How often a step is captured: never, or once a bucket of places, to be replayed from then on."""

from __future__ import annotations

import abc
import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

import attrs
import torch

from sparda_core.runtimes.gpu.capture import capture, new_pool
from sparda_core.runtimes.gpu.executor import Piece
from sparda_core.runtimes.gpu.lanes import StreamLanes


@attrs.frozen
class StepKey:
    """What a step is bound, and captured, for.

    places   the bucket: the first places, a power of two of them, or all
    nucleus  whether any row samples; a step in which all are greedy sorts nothing
    """

    places: int
    nucleus: bool = False


#: Makes the pieces of a step.
Pieces = Callable[[StepKey], Sequence[Piece]]


def bucket_of(rows: int, places: int) -> int:
    """The least power of two that holds `rows`, or all places."""
    return min(places, 1 << max(0, rows - 1).bit_length())


class Replays(abc.ABC):
    """Runs steps of any key, as work of `lanes.step`. A step is issued, not awaited."""

    @abc.abstractmethod
    def run(self, key: StepKey) -> None:
        """Issue one step."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget what was captured: tensors that it reads are about to be others."""

    @abc.abstractmethod
    def close(self) -> None:
        """Forget everything at once; nothing may be running."""


class Eager(Replays):
    """Issues every operation in every step."""

    def __init__(self, make: Pieces) -> None:
        self._make = make
        self._pieces: dict[StepKey, tuple[Piece, ...]] = {}

    def pieces(self, key: StepKey) -> tuple[Piece, ...]:
        """The step of a key, bound once."""
        if key not in self._pieces:
            self._pieces[key] = tuple(self._make(key))
        return self._pieces[key]

    def run(self, key: StepKey) -> None:
        """Issue every piece in turn."""
        for piece in self.pieces(key):
            piece.begin()
            piece.issue()
            piece.end()

    def reset(self) -> None:
        """Forget the bound pieces."""
        self._pieces.clear()

    def close(self) -> None:
        """The same."""
        self.reset()


@attrs.frozen(eq=False)
class _Captured:
    """A piece and its graph; None where the host runs it."""

    piece: Piece
    graph: torch.cuda.CUDAGraph | None

    def issue(self) -> None:
        self.piece.begin()
        if self.graph is None:
            self.piece.issue()
        else:
            self.graph.replay()
        self.piece.end()


class Captured(Replays):
    """Issues the first step of a key as it is, captures it before the second, and replays it from then on.

    The first step compiles kernels and makes libraries allocate, which a capture forbids; being a real step, it
    needs no state to be put back. All graphs share one pool: only one of them runs at a time.
    """

    def __init__(self, eager: Eager, lanes: StreamLanes, make: Pieces | None = None) -> None:
        """`make`, if given, makes the pieces to be captured, where they are not those that `eager` issues."""
        self._eager, self._lanes, self._make = eager, lanes, make or eager.pieces
        self._pool = new_pool()
        self._warm: set[StepKey] = set()
        self._graphs: dict[StepKey, tuple[_Captured, ...]] = {}
        self._old: list[tuple[_Captured, ...]] = []

    @property
    def captured(self) -> tuple[StepKey, ...]:
        """What is captured, oldest first."""
        return tuple(self._graphs)

    def run(self, key: StepKey) -> None:
        """Replay the key's graphs."""
        if key not in self._graphs:
            if key not in self._warm:
                self._eager.run(key)
                self._warm.add(key)
                return
            self._graphs[key] = self._capture(key)
        for part in self._graphs[key]:
            part.issue()

    def _capture(self, key: StepKey) -> tuple[_Captured, ...]:
        self._lanes.settle()
        try:
            with _nothing_collected():
                made = tuple(self._captured(piece) for piece in self._make(key))
        except BaseException:
            self._pool = new_pool()
            raise
        # A graph destroyed during another's capture breaks that capture; nothing is being captured now.
        self._old.clear()
        return made

    def _captured(self, piece: Piece) -> _Captured:
        return _Captured(piece, None if piece.on_host else capture(piece.issue, self._lanes, self._pool))

    def reset(self) -> None:
        """Forget the graphs; they are destroyed once others took their place."""
        self._eager.reset()
        self._warm.clear()
        self._old.extend(self._graphs.values())
        self._graphs.clear()

    def close(self) -> None:
        """Destroy the graphs, now rather than when Python happens to: that may be during another's capture."""
        self.reset()
        self._old.clear()


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's collector could destroy some other session's graph in mid-capture; it waits."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
