"""Late blocks of a simulated step: misses that had not arrived when the compute lane wanted them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.spans import Timeline


def late_blocks(timeline: Timeline, plan: StepPlan, facts: Sequence[StepFacts]) -> tuple[int, ...]:
    """Late blocks of each step, as the executor counts them: of all layers, rows and KV heads.

    A layer's blocks arrive evenly while its transfer moves bytes; the compute lane wants them when the
    operation before the layer's attention has ended. A block that is under way then is late.
    """
    compute = plan.lane(Lane.COMPUTE)
    before = {op.layer: compute[i - 1].name for i, op in enumerate(compute) if i and op.kind == Kind.ATTEND}
    ends_ns = {(span.step, span.name): span.end_ns for span in timeline.spans if span.lane == Lane.COMPUTE}
    late = [0] * len(facts)
    for span in timeline.lane(Lane.H2D):
        if span.kind != Kind.FETCH:
            continue
        misses = int(facts[span.step].misses[span.layer].sum())
        wanted_ns = ends_ns[span.step, before[span.layer]]
        share = (span.end_ns - wanted_ns) / max(1, span.end_ns - span.start_ns)
        # The excess of a rounding is no block.
        late[span.step] += min(misses, math.ceil(max(0.0, share) * misses - 1e-9))
    return tuple(late)
