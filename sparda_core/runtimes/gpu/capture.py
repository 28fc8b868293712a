"""One capture, and the end of one that failed: the process must be able to go on, and to capture again.

torch ends a capture whole or not at all. Where CUDA refuses the end (a lane was not joined, or something in the
middle is not allowed under capture), its allocator still thinks that memory is asked for by a capture, and its
default random generator that it counts for one; the next random number then fails, in whatever other code asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.cuda.memory import _cuda_endAllocateToPool, _cuda_releasePool  # type: ignore[attr-defined]

from sparda_core.runtimes.gpu.lanes import StreamLanes

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE as Pool  # noqa: N811

# Other threads may use the device meanwhile: what they do is not what a capture must not see.
_MODE = "thread_local"


def new_pool() -> Pool:
    """Memory for graphs. torch refuses a pool whose graphs are all gone, so after a failure take another."""
    return torch.cuda.graph_pool_handle()


def capture(issue: Callable[[], None], lanes: StreamLanes, pool: Pool) -> torch.cuda.CUDAGraph:
    """What `issue` issues to the stream that is current, that of the compute lane, as a graph.

    Whatever `issue` or CUDA raises is raised, once the capture has been ended.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=pool, capture_error_mode=_MODE)
        issue()
        graph.capture_end()
    except BaseException:
        _abandon(graph, lanes, pool)
        raise
    return graph


def _abandon(graph: torch.cuda.CUDAGraph, lanes: StreamLanes, pool: Pool) -> None:
    """End a capture in mid-way. Errors met on the way follow from the first one, which is the one to report."""
    with contextlib.suppress(RuntimeError):
        lanes.join()
    try:
        graph.capture_end()
    except RuntimeError:
        # CUDA has ended the capture, torch has not noticed: what it does at an end, in its order.
        with contextlib.suppress(RuntimeError):
            _cuda_endAllocateToPool(lanes.compute.device_index, pool)
            _cuda_releasePool(lanes.compute.device_index, pool)
        with contextlib.suppress(RuntimeError):
            _capture_nothing(lanes)


def _capture_nothing(lanes: StreamLanes) -> None:
    """A capture that succeeds, in memory of its own: the random generator leaves capture with it."""
    one = torch.zeros(1, device=lanes.compute.device)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode=_MODE)
    one.zero_()
    graph.capture_end()
