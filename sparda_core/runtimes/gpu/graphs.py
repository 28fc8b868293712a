"""How often a step is captured: never, or once a batch bucket, to be replayed from then on."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import attrs
import torch

from sparda_core.runtimes.gpu.executor import Piece
from sparda_core.runtimes.gpu.lanes import Lanes, StreamLanes

#: Makes the pieces of a step for a bucket: the places that it covers.
Pieces = Callable[[int], Sequence[Piece]]


def bucket_of(rows: int, places: int) -> int:
    """The least power of two that holds `rows`, or all places."""
    return min(places, 1 << max(0, rows - 1).bit_length())


class Replays(abc.ABC):
    """Runs steps of any bucket. A step is issued, not awaited."""

    @abc.abstractmethod
    def run(self, bucket: int) -> None:
        """Issue one step for the first `bucket` places."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget what was captured: tensors that it reads are about to be others."""


class Eager(Replays):
    """Issues every operation in every step."""

    def __init__(self, make: Pieces, lanes: Lanes) -> None:
        self._make, self._lanes = make, lanes
        self._pieces: dict[int, tuple[Piece, ...]] = {}

    def pieces(self, bucket: int) -> tuple[Piece, ...]:
        """The step of a bucket, bound once."""
        if bucket not in self._pieces:
            self._pieces[bucket] = tuple(self._make(bucket))
        return self._pieces[bucket]

    def run(self, bucket: int) -> None:
        """Issue every piece in turn."""
        pieces = self.pieces(bucket)
        with self._lanes.step():
            for piece in pieces:
                piece.begin()
                piece.issue()

    def reset(self) -> None:
        """Forget the bound pieces."""
        self._pieces.clear()


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


class Captured(Replays):
    """Issues the first step of a bucket as it is, captures it before the second, and replays it from then on.

    The first step compiles kernels and makes libraries allocate, which a capture forbids; being a real step, it
    needs no state to be put back. All graphs share one pool: only one of them runs at a time.
    """

    def __init__(self, eager: Eager, lanes: StreamLanes) -> None:
        self._eager, self._lanes = eager, lanes
        self._pool = torch.cuda.graph_pool_handle()
        self._warm: set[int] = set()
        self._graphs: dict[int, tuple[_Captured, ...]] = {}
        self._old: list[tuple[_Captured, ...]] = []

    @property
    def buckets(self) -> tuple[int, ...]:
        """Buckets that are captured."""
        return tuple(sorted(self._graphs))

    def run(self, bucket: int) -> None:
        """Replay the bucket's graphs."""
        if bucket not in self._graphs:
            if bucket not in self._warm:
                self._eager.run(bucket)
                self._warm.add(bucket)
                return
            self._graphs[bucket] = self._capture(bucket)
        with self._lanes.step():
            for part in self._graphs[bucket]:
                part.issue()

    def _capture(self, bucket: int) -> tuple[_Captured, ...]:
        self._lanes.settle()
        made = tuple(_Captured(piece, self._graph(piece)) for piece in self._eager.pieces(bucket))
        # A graph destroyed during another's capture breaks that capture; nothing is being captured now.
        self._old.clear()
        return made

    def _graph(self, piece: Piece) -> torch.cuda.CUDAGraph | None:
        if piece.on_host:
            return None
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: they are not what "thread_local" forbids.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._lanes.compute, capture_error_mode="thread_local"
        ):  # fmt: skip
            piece.issue()
        return graph

    def reset(self) -> None:
        """Forget the graphs; they are destroyed once others took their place."""
        self._eager.reset()
        self._warm.clear()
        self._old.extend(self._graphs.values())
        self._graphs.clear()
