"""Two formulas of others, derived anew from what they publish, on our plan, facts and profile: rivals to be beaten.

They get the best numbers that there are (the profile's measured ceilings and times, where their authors take data
sheets or tables of their own), so that what is judged is the formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparda_core.errors import ProfileError
from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, StepPlan
from sparda_core.simulator.alone import alone_s, windows
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import Simulator, WorkOfOp


def overlapped_roofline_s(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> float:
    """Mean seconds of a step by a roofline whose offloaded bytes overlap perfectly with those on the device.

    An operator takes max(FLOPs / peak, bytes / bandwidth), operators follow one another, and nothing else takes time
    (GenZ, arXiv 2406.01698; the ceilings measured stand for its efficiency factors). Offload is one bandwidth for all
    operators: of M bytes that a step reads, O from beyond the link, M / max((M - O) / device memory, O / link), as the
    authors' program has it (GenZ-LLM-Analyzer, `get_offload_system`). There M and O are capacities, since every byte is
    read once a step; here they are bytes read, since most of what is offloaded is not. O is at most M: nothing crosses
    twice.

    Raises ProfileError for a profile without ceilings (a CPU's).
    """
    peak, device = profile.kernel_ceilings()
    if not (math.isfinite(peak) and math.isfinite(device)):
        raise ProfileError(f"profile {profile.name!r} has no ceilings for a roofline; use a GPU's profile")
    link = profile.capacity()["h2d"]
    total_s = 0.0
    for fact in facts:
        works = [(op.lane, work_of_op(op, fact)) for op in plan.ops]
        compute = [work for lane, work in works if lane == Lane.COMPUTE]
        read = math.fsum(work.hbm_bytes for work in compute)
        crossed = min(read, math.fsum(work.h2d_bytes for _, work in works))
        bandwidth = read / max((read - crossed) / device, crossed / link) if read else math.inf
        total_s += math.fsum(max(work.flops / peak, work.hbm_bytes / bandwidth) for work in compute)
    return total_s / len(facts)


def max_of_sums_s(plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile) -> float:
    """Mean seconds of a step whose operations take as long as alone, one after another, but for overlapped groups.

    A group of operations beside another one takes max(sum of one, sum of the other) (AIConfigurator, arXiv 2601.06288:
    a step is the sum of measured primitives; its program's `OverlapOp` is the maximum of two such sums). The groups
    here are the transfers that an operation waits for, and the compute between their release and that operation.
    """
    simulator, capacity, cut = Simulator(plan, work_of_op, profile), profile.capacity(), windows(plan)
    total_s = 0.0
    for fact in facts:
        each = [alone_s(price, capacity) for price in simulator.prices(fact)]
        total_s += profile.step_s
        for window in cut:
            beside, moved = (math.fsum(each[i] for i in group) for group in (window.beside, window.transfers))
            total_s += math.fsum(each[i] for i in window.head) + max(beside, moved)
    return total_s / len(facts)
