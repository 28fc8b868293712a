"""What a compute kernel loses to copy CTAs that hold SMs, in closed form: the SM slots of the engine must agree.

The account (an inference from one H200, `docs/design.md` says which measurements carry it): SMs lie in
pairs, TPCs. A lone copy CTA settles on an SM of a TPC that is wholly free; the neighbouring SM stays
usable for single CTAs, but no pair of CTAs that must start together fits there any more. A grid runs
in waves of what fits at once, and one CTA more than a wave holds costs a further wave.
"""

from __future__ import annotations

import math

import attrs

from sparda_core.simulator.profile import Grid

#: SMs of a TPC.
PAIR = 2


@attrs.frozen(kw_only=True)
class Free:
    """SMs that copy CTAs leave: `pairs` TPCs wholly free, and `sms` SMs in all, those of the pairs included."""

    sms: int
    pairs: int


def free_beside(sms: int, ctas: int, cluster: int = 1) -> Free:
    """What `ctas` copy CTAs in clusters of `cluster` leave of `sms` SMs, each on an SM of its own.

    Lone CTAs spread over the TPCs first and double up only when none is wholly free; a cluster fills
    its TPCs, the last one perhaps by half.
    """
    per_cluster = -(-cluster // PAIR)
    taken = ctas if cluster == 1 else -(-ctas // cluster) * per_cluster
    held = ctas if cluster == 1 else min(ctas, taken * PAIR)
    return Free(sms=max(0, sms - held), pairs=max(0, sms // PAIR - taken))


def waves(grid: Grid, free: Free) -> float:
    """Waves that a grid runs in on what is free; infinite where not even one cluster fits."""
    seats = free.sms if grid.cluster == 1 else free.pairs // -(-grid.cluster // PAIR)
    places = seats * grid.per_sm
    clusters = -(-grid.ctas // grid.cluster)
    return math.ceil(clusters / places) if places else math.inf


def slowdown(grid: Grid, sms: int, ctas: int, cluster: int, wave_share: float) -> float:
    """How much longer a kernel takes beside `ctas` copy CTAs in clusters of `cluster`, >= 1.

    wave_share  what one more wave adds, as a share of the kernel's time alone
    """
    alone, beside = waves(grid, free_beside(sms, 0)), waves(grid, free_beside(sms, ctas, cluster))
    return 1 + (beside - alone) * wave_share if beside > alone else 1.0
