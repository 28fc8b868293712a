"""Laws of waiting: Little's law on finite runs, and the means of processor sharing against its closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.simulator.laws.flows import Load, ends, on_link, play
from tests.simulator.laws.law import law
from tests.simulator.laws.sharing import loads

#: Nanoseconds of a flow of size 1 alone: far above the tick, so that rounding does not show in a mean.
SERVICE = 1000.0
#: Every arrival has a lane of its own, so that a long run costs the square of its length.
RUNS, ARRIVALS = 24, 200


@law(loads, mutants=["end-heard-late"])
def mean_flows_in_flight_times_time_equals_the_sum_of_their_stays(load: Load) -> None:
    """Little's law, exact on a run that starts and ends empty: both sides are integers."""
    played = play(load, watched=True)
    jobs = range(len(load.jobs))
    area = sum(length * sum(played.rate(i, usage) > 0 for i in jobs) for length, usage in played.stretches())
    assert area == sum(end - job.start_ns for job, end in zip(load.jobs, played.ends_ns, strict=True))


def sojourns(seed: int, load: float, sizes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(sizes, stays in services of size 1) of Poisson arrivals at a link that is busy `load` of the time.

    RUNS of ARRIVALS each: a run begins at an idle link, which it forgets after a few arrivals.
    """
    draw = np.random.default_rng(seed)
    size = draw.choice(sizes, (RUNS, ARRIVALS))
    gaps = draw.exponential(SERVICE * float(np.mean(sizes)) / load, (RUNS, ARRIVALS))
    starts = np.round(np.cumsum(gaps, axis=1)).astype(np.int64)
    over = [
        ends(on_link(*((int(at), float(one) * SERVICE) for at, one in zip(*run, strict=True))))
        for run in zip(starts, size, strict=True)
    ]
    return size.ravel(), (np.array(over) - starts).ravel() / SERVICE


LOADS = st.sampled_from([0.3, 0.6])


@law(st.tuples(st.integers(0, 9), LOADS), examples=2, mutants={"first-come-first-served": (1, 0.6)})
def the_mean_stay_of_equal_sizes_is_that_of_processor_sharing_and_not_of_a_queue(case: tuple[int, float]) -> None:
    """M/D/1: 1 / (1 - load) when shared, 1 + load / 2 (1 - load) in a queue.

    Sizes are equal, because with exponential ones both means are the same.
    """
    seed, load = case
    mean = float(sojourns(seed, load, (1.0,))[1].mean())
    shared, queue = 1 / (1 - load), 1 + load / 2 / (1 - load)
    assert mean == pytest.approx(shared, rel=0.12)
    assert abs(mean - queue) > abs(mean - shared)


@law(st.tuples(st.integers(0, 9), st.just(0.5)), examples=2, mutants={"first-come-first-served": (0, 0.5)})
def a_flow_four_times_as_long_stays_four_times_as_long_on_average(case: tuple[int, float]) -> None:
    """M/G/1 shared: a flow of size x stays x / (1 - load) on average, whatever the other sizes."""
    seed, load = case
    size, stays = sojourns(seed, load, (1.0, 4.0))
    for one in (1.0, 4.0):
        assert float(stays[size == one].mean()) == pytest.approx(one / (1 - load), rel=0.12)
