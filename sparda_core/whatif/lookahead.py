"""The lookahead study: where knowing a selection one layer early still pays once the device keeps more of them.

The paper's device keeps exactly the last selection, the worst case for misses (SparDA, section 4). An LRU of 2 or 4
selections misses far less (HiSparse: 30, 13.4, 6.7 % at 1x, 2x, 4x), so there is less left to hide. The study sets
prefetching against the same selector without it, and against plain query selection, over how blocks come back,
machines, contexts, pools and batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparda_core.errors import ConfigError
from sparda_core.simulator.copy_default import fewest_ctas
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario

LOCALITY = "hisparse"
#: A gain that is worth the trained Forecast.
PAYS = 1.05
AHEAD, SAME, QUERY = "forecast x offload-prefetch", "forecast x offload-sync", "query x offload-sync"
METHODS: dict[str, dict[str, Any]] = {
    QUERY: {"selector": "query", "runtime": "offload-sync"},
    SAME: {"selector": "forecast", "runtime": "offload-sync"},
    AHEAD: {"selector": "forecast", "runtime": "offload-prefetch"},
}
PAPER = "1x last-selection"
#: What the device keeps. A pool of one selection holds just that under every policy, and `last-selection` no more
#: however large it is, so neither comes twice.
POOLS: dict[str, dict[str, Any]] = {
    PAPER: {"policy": "last-selection", "slot_factor": 1.0},
    "2x lru": {"policy": "lru", "slot_factor": 2.0},
    "4x lru": {"policy": "lru", "slot_factor": 4.0},
}
#: Only a recording knows what these miss: they follow scores.
SCORED_POOLS: dict[str, dict[str, Any]] = {
    "2x score": {"policy": "score", "slot_factor": 2.0},
    "4x score": {"policy": "score", "slot_factor": 4.0},
}
#: How blocks come back: as published for a cache of tokens, and as recorded on a small model with 16 and 8 blocks.
TRACES: dict[str, dict[str, Any]] = {
    LOCALITY: {"locality": LOCALITY},
    "forecast-16": {"recording": "smollm2/forecast-16"},
    "forecast-8": {"recording": "smollm2/forecast-8"},
}
#: Host memory of the machines, bytes / 1e9: what rows of a million tokens want. GH200's is part of the module.
HOST_GB = 2048.0
HEADLINE = "H200"
#: By the speed of their host link.
_MACHINES: dict[str, dict[str, Any]] = {
    "H200, PCIe 3": {"profile": "h200", "pcie": 3, "host_gb": HOST_GB},
    "H200, PCIe 4": {"profile": "h200", "pcie": 4, "host_gb": HOST_GB},
    "H100": {"profile": "h100-sxm", "host_gb": HOST_GB},
    HEADLINE: {"profile": "h200", "host_gb": HOST_GB},
    "H200, PCIe 6": {"profile": "h200", "pcie": 6, "host_gb": HOST_GB},
    "GH200": {"profile": "gh200"},
}
#: The usual axes. One link given takes the place of the machines, generations stand in for them on another profile.
BATCHES, GENERATIONS = (1, 4, 16, 64), (3, 4, 5, 6)
CONTEXTS = (2**15, 2**17, 2**19, 2**20)
AXES = ("batch", "pcie", "link_gb_s", "context", "budget", "churn", "engine", "ctas", "profile", "recording")
LINK, GENERATION = "link_gb_s", "pcie"
TRACE, MACHINE = "trace", "machine"
#: Knobs that say how blocks come back, and those that say on what.
_OF_TRACE, _OF_MACHINE = ("locality", "recording", "churn"), ("profile", "pcie", "link_gb_s")


def lookahead_grid(base: Scenario, axes: Mapping[str, Any]) -> Grid:
    """Traces x machines x contexts x pools x methods x batches.

    An axis is left out where the base has another value than a Scenario's own for what it turns; `axes` take the place
    of the usual ones, and one of AXES may join.
    raises  ConfigError for an axis that the study turns itself
    """
    for name in axes:
        if name not in AXES:
            may = ", ".join(AXES)
            raise ConfigError(f"grid {name}: the study lookahead varies {may}; leave --study out for a free grid")

    def given(names: Iterable[str]) -> bool:
        return any(name in axes or getattr(base, name) != getattr(Scenario(), name) for name in names)

    usual: dict[str, Any] = {}
    if not given(_OF_TRACE):
        usual[TRACE] = TRACES
    elif base.recording is None and base.locality is None and "recording" not in axes:
        base = base.turned(locality=LOCALITY)
    if not given(_OF_MACHINE):
        usual[MACHINE] = machines()
    elif not given((LINK, GENERATION)) and "profile" not in axes and _has_generations(base):
        usual[GENERATION] = GENERATIONS
    if not given(["context"]):
        usual["context"] = CONTEXTS
    scored = base.recording is not None or "recording" in axes or TRACE in usual
    usual |= {"pool": POOLS | SCORED_POOLS if scored else POOLS, "method": METHODS}
    if not given(["batch"]):
        usual["batch"] = BATCHES
    return Grid(base=base, axes={**usual, **axes})


def machines() -> dict[str, dict[str, Any]]:
    """Label -> knobs: each machine copies with the fewest thread blocks that fill its link, two at least.

    No more than its profile was calibrated for: GH200's link would take some more.
    """
    return {name: {**knobs, "ctas": _ctas(knobs)} for name, knobs in _MACHINES.items()}


def _ctas(knobs: Mapping[str, Any]) -> int:
    machine = Scenario(**knobs).machine()
    assert isinstance(machine, GpuProfile)
    if machine.uva is None:
        return 2
    most = machine.domain()["copy_bytes_in_flight"][1] // machine.uva.in_flight_bytes.value
    return max(2, min(int(most), fewest_ctas(machine.uva)))


def _has_generations(base: Scenario) -> bool:
    machine = base.machine()
    return isinstance(machine, GpuProfile) and machine.link.generation is not None
