"""What a step is made of: each kind of operation alone, copies alone, compute with a copy beside it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from sparda_core.bench.decode.clock import Clock, median
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.plan import Kind, Lane, Op
from sparda_core.runtimes.gpu.executor import pieces_of
from sparda_core.runtimes.gpu.lanes import SerialLanes
from sparda_core.runtimes.gpu.session import GpuSession

_REPLAYS = 12
#: Blocks of the copy that runs beside compute: long enough to cover a few layers.
_BESIDE_BLOCKS = 4096


class Parts:
    """Captures parts of a session's step and times them. Leaves the rows unfit for further steps."""

    def __init__(self, session: GpuSession, clock: Clock) -> None:
        self._session, self._clock, self._machinery = session, clock, session.machinery
        self._plan = session.plan
        self._table = self._machinery.table()

    @torch.inference_mode()
    def measure(self, *, whole: bool) -> dict[str, Any]:
        """Seconds, each the median of a dozen replays. Without `whole` only the first.

        copies_s                the last step's transfers, one after the other, nothing beside them; None without any
        copies_beside_s         the same beside this step's compute
        head_s, tail_s          compute before the first transfer can be known, and after the last one is needed
        compute_s               the step without its transfers
        compute_beside_copy_s   the same beside a copy that never ends
        kinds_s                 by kind of operation: all of that kind, one after the other
        """
        found: dict[str, Any] = dict.fromkeys(
            ("copies_s", "copies_beside_s", "head_s", "tail_s", "compute_s", "compute_beside_copy_s")
        )
        fetches = self._plan.lane(Lane.H2D)
        if fetches and not self._machinery.engine.needs_host_list:
            found["copies_s"] = self._time(fetches)
        if not whole:
            return found
        if found["copies_s"] is not None:
            found["copies_beside_s"] = self._copies_beside(fetches)
            found["head_s"] = self._time(self._before(fetches[0]))
            found["tail_s"] = self._time(self._after(fetches[-1]))
            found["compute_s"] = self._whole()
            found["compute_beside_copy_s"] = self._beside()
        kinds = dict.fromkeys(op.kind for op in self._plan if op.lane == Lane.COMPUTE)
        # Their launches are those of `project`, or of nobody: an empty graph has no time.
        fused = {Kind.ENTRIES, Kind.APPEND} if self._plan.lead else {Kind.ENTRIES}
        found["kinds_s"] = {str(kind): self._time(self._of_kind(kind)) for kind in kinds if kind not in fused}
        return found

    def _of_kind(self, kind: str) -> list[Op]:
        # The list of misses grows with every diff: `embed` empties it.
        wanted = {kind, Kind.EMBED} if kind == Kind.DIFF else {kind}
        return [op for op in self._plan if op.kind in wanted]

    def _before(self, fetch: Op) -> list[Op]:
        ops = list(self._plan)
        return [op for op in ops[: ops.index(fetch)] if op.lane == Lane.COMPUTE]

    def _after(self, fetch: Op) -> list[Op]:
        ops = list(self._plan)
        first = next(at for at, op in enumerate(ops) if fetch.name in op.after)
        return [op for op in ops[first:] if op.lane == Lane.COMPUTE]

    def _graph(self, ops: Iterable[Op]) -> torch.cuda.CUDAGraph:
        """Operations one after the other, on one stream."""
        chosen = list(ops)
        return self._capture(lambda: [self._table[op.kind](op) for op in chosen])

    def _capture(self, issue: Callable[[], object], lane: Lane = Lane.COMPUTE) -> torch.cuda.CUDAGraph:
        lanes = self._clock.lanes
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        stream = lanes.compute if lane == Lane.COMPUTE else lanes.h2d
        with warnings.catch_warnings():
            # Some kinds launch nothing of their own in some plans.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                issue()
        return graph

    def _copies_beside(self, fetches: Sequence[Op]) -> float:
        copies = self._capture(lambda: [self._table[op.kind](op) for op in fetches], Lane.H2D)
        # Neither `embed` nor `diff`: they would write the very lists that the copies are reading.
        compute = self._graph(
            op for op in self._plan if op.lane == Lane.COMPUTE and op.kind not in (Kind.EMBED, Kind.DIFF)
        )
        return median([self._clock.beside(copies, compute, 3) for _ in range(_REPLAYS)])

    def _time(self, ops: Iterable[Op]) -> float:
        return median(self._clock.replays(self._graph(ops), _REPLAYS))

    def _without_copies(self) -> torch.cuda.CUDAGraph:
        table = {**self._table, Kind.FETCH: lambda op: None}
        (piece,) = pieces_of(self._plan, table, SerialLanes(), host_lists=False)
        return self._capture(piece.issue)

    def _whole(self) -> float:
        return median(self._clock.replays(self._without_copies(), _REPLAYS))

    def _beside(self) -> float | None:
        """Compute beside copies of fresh random lists, issued until it has ended."""
        tier = next(tier for tier in self._machinery.tiers.layers if tier.host is not None)
        assert tier.host is not None
        assert tier.slots is not None
        graph, device, options = self._without_copies(), self._machinery.device, self._machinery.options
        size = options.copy_size(options.places)
        target = torch.empty((_BESIDE_BLOCKS, *tier.slots.array.shape[1:]), dtype=tier.slots.array.dtype, device=device)
        ids = torch.arange(_BESIDE_BLOCKS, dtype=torch.int32, device=device)
        count = torch.full((1,), _BESIDE_BLOCKS, dtype=torch.int32, device=device)
        lanes, blocks = self._clock.lanes, tier.host.array.shape[0]
        times = []
        for _ in range(_REPLAYS):
            lists = [torch.randint(blocks, (_BESIDE_BLOCKS,), dtype=torch.int32, device=device) for _ in range(16)]
            torch.cuda.synchronize()
            for source in lists:
                with torch.cuda.stream(lanes.h2d):
                    gather_blocks(
                        tier.host.array, target, source, ids, count, ctas=size.ctas,
                        in_flight_bytes=size.in_flight_bytes, scales=tier.host.scales,
                    )  # fmt: skip
            times += self._clock.replays(graph, 1)
            torch.cuda.synchronize()
        return median(times)
