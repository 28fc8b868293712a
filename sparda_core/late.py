"""Late blocks by a timeline: misses that had not arrived when the compute lane wanted them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.spans import Timeline


def late_blocks(timeline: Timeline, plan: StepPlan, facts: Sequence[StepFacts]) -> tuple[int, ...]:
    """Late blocks of each step, of all layers, rows and KV heads; see `late_by_layer`."""
    return tuple(sum(late_by_layer(timeline, plan, met, step).values()) for step, met in enumerate(facts))


def late_by_layer(timeline: Timeline, plan: StepPlan, met: StepFacts, step: int = 0) -> dict[int, int]:
    """Layer -> late blocks of one step of a timeline, for layers whose blocks moved.

    A layer's blocks arrive evenly while its transfer moves bytes; the compute lane wants them when the
    operation before the layer's attention has ended. A block that is under way then is late, as the CPU's
    executor counts it.
    """
    compute = plan.lane(Lane.COMPUTE)
    before = {op.layer: compute[i - 1].name for i, op in enumerate(compute) if i and op.kind == Kind.ATTEND}
    spans = [span for span in timeline.spans if span.step == step]
    ends_ns = {span.name: span.end_ns for span in spans if span.lane == Lane.COMPUTE}
    late = {}
    for span in spans:
        if span.kind != Kind.FETCH or span.lane != Lane.H2D:
            continue
        misses = int(met.misses[span.layer].sum())
        share = (span.end_ns - ends_ns[before[span.layer]]) / max(1, span.end_ns - span.start_ns)
        # The excess of a rounding is no block.
        late[span.layer] = min(misses, math.ceil(max(0.0, share) * misses - 1e-9))
    return late


def with_late(met: StepFacts, timeline: Timeline, plan: StepPlan) -> StepFacts:
    """The facts of a timeline's one step with its late blocks: exact by layer, spread over rows and heads as misses.

    A copy kernel moves the blocks of all rows and heads side by side, and nobody sees which came last.
    """
    late = np.zeros_like(met.misses)
    for layer, count in late_by_layer(timeline, plan, met).items():
        misses = met.misses[layer].ravel()
        if count:
            reached = np.floor(np.cumsum(misses) * (count / misses.sum()) + 1e-9).astype(np.int64)
            late[layer] = np.diff(reached, prepend=0).reshape(late[layer].shape)
    return attrs.evolve(met, late=late)
