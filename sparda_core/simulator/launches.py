"""How a step reaches a GPU: in one graph, in segments of graphs, or kernel by kernel."""

from __future__ import annotations

from sparda_core.plan import Phase

LAUNCHES = ("graph", "segments", "eager")
#: Engines whose copies the host submits: a list of misses that the device makes must reach the host first.
HOST_LIST_ENGINES = ("copy-engine", "cpu-gather")
#: The one whose host gathers blocks first.
GATHERS = "cpu-gather"


def needs_host_list(engine: str) -> bool:
    """Whether the host must know which blocks to move before they move."""
    return engine in HOST_LIST_ENGINES


def default_launches(engine: str, phase: Phase = Phase.DECODE) -> str:
    """One graph where nothing forbids it; segments for an engine that needs a host list; prefill runs eagerly."""
    if phase == Phase.PREFILL:
        return "eager"
    return "segments" if needs_host_list(engine) else "graph"
