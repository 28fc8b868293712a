"""When each operation of a captured step ran, by torch's profiler; refused where the profiler slowed the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from sparda_core.bench.decode.clock import Clock, median
from sparda_core.bench.decode.kernel_spans import Ran, launches_of, step_s, timeline_of
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.kernels.inference import in_inference
from sparda_core.plan import Op
from sparda_core.runtimes.gpu.engines import require_one_graph
from sparda_core.runtimes.gpu.executor import Issue, pieces_of
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.spans import Timeline

#: Steps behind the unprofiled time, and in a timeline.
PLAIN_STEPS, STEPS = 64, 8
#: Steps that pass before the first one of a timeline.
BEFORE = 2 + PLAIN_STEPS
#: How far the profiled step may be from the unprofiled one; docs/design.md, "Measuring".
TOLERANCE = 0.03
#: Kernel of torch.cuda._sleep, launched before every operation of one step: no kernel of ours is called so.
_MARKER = "spin_kernel"


def graph_timeline(session: GpuSession, *, steps: int = STEPS) -> Timeline:
    """Spans of some steps in a row of a session whose rows have decoded before. Leaves the rows unfit for more.

    Raises ConfigError where a step is not one graph, RecordingError where the kernels of the graph are not those of
    its operations issued one by one, or where its step time differs from the unprofiled one by more than TOLERANCE.
    """
    machinery = session.machinery
    require_one_graph(machinery.engine)
    if not machinery.captures:
        raise ConfigError("a timeline of a graph needs a session with graph=True on a CUDA device")
    if machinery.options.copy_launch != "layer":
        raise ConfigError("a timeline of a graph needs copy_launch='layer': one copy of a whole step has no layers")
    session.run(BEFORE - PLAIN_STEPS)  # captured by now
    plain_s = median(Clock(session).steps(PLAIN_STEPS))
    profiled(lambda: None)  # the profiler's own start takes its time once

    def some() -> None:
        for _ in range(steps):
            session.run(1)

    graph = profiled(some)
    launches = launches_of(profiled(lambda: _marked_step(session)), session.plan, _MARKER)
    timeline = timeline_of(graph, session.plan, launches, steps=steps, early=machinery.early > 0)
    profiled_s = step_s(timeline, session.plan)
    if abs(profiled_s / plain_s - 1) > TOLERANCE:
        raise RecordingError(
            f"the profiled step takes {profiled_s * 1e3:.3f} ms, the unprofiled one {plain_s * 1e3:.3f} ms: more than "
            f"{TOLERANCE:.0%} apart, so its spans are not those of the step that is quoted"
        )
    return timeline


def profiled(work: Callable[[], None]) -> list[Ran]:
    """What ran on the device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        torch.cuda.synchronize()
    return [_ran(event) for event in seen.events() or () if event.device_type == DeviceType.CUDA]


def _ran(event: Any) -> Ran:
    start, end = (round(1e3 * edge) for edge in (event.time_range.start, event.time_range.end))
    return Ran(name=event.name, start_ns=start, end_ns=end, stream=event.device_resource_id)


def _marked_step(session: GpuSession) -> None:
    """One step, issued operation by operation with a marker before each."""
    machinery = session.machinery
    table = {kind: _after_marker(run) for kind, run in machinery.table().items()}
    (piece,) = pieces_of(session.plan, table, machinery.lanes, host_lists=False)

    def issue() -> None:
        piece.begin()
        piece.issue()

    in_inference(lambda: machinery.lanes.step(issue))


def _after_marker(run: Issue) -> Issue:
    def marked(op: Op) -> None:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # noqa: SLF001  a kernel that does nothing else
        run(op)

    return marked
