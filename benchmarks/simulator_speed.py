"""How fast the simulator is: activities and full steps a second of one process, a cold command, points of a study.

    python benchmarks/simulator_speed.py                   # prints
    python benchmarks/simulator_speed.py --json            # also writes benchmarks/results/DATE-simulator-speed.json

An activity is one operation of a plan. Every step counted is run: no step is taken for another that it equals.
What a step is put together from may be remembered, though: the simulator repeats *windows* (about a layer) that it
met before. So each plan is run under two kinds of facts, with and without that memory:

constant  eight steps that differ in churn, again and again; a step's layers are alike, and after the first rounds
          every window is known. What windows alone give is the difference between "simulated" and "no memory"
drawn     256 steps, once each, by a simulator that knows nothing: every KV head of every row and layer misses a
          number of blocks of its own, rows have lengths of their own, and these grow. Uneven as recorded facts are

Rates are per second of this process's own processor time, so that other programs weigh less;
what still weighs is how fast the processor runs just then, and therefore SimPy's bare event loop is timed
in turns with the simulator: the ratio of the two is the figure to compare between machines.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import simpy

from sparda_core.bench.provenance import busy_cores, provenance
from sparda_core.facts import StepFacts
from sparda_core.files import check_place, write_whole
from sparda_core.plan import StepPlan
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.predict import kernel_work
from sparda_core.simulator.run import Simulator
from sparda_core.whatif.point import context_of, facts_of, plan_of
from sparda_core.whatif.scenario import Scenario

RESULTS = Path(__file__).parent / "results"
METHODS = (("forecast", "offload-prefetch"), ("query", "offload-sync"), ("query", "resident"))
#: Steps that differ a little in what they miss, so that none equals another.
CHURNS = (0.02, 0.03, 0.04, 0.05, 0.07, 0.09, 0.12, 0.15)
#: Steps of drawn facts: the mean churn, how many, how much shorter than the scenario's context a row may be.
DRAWN_CHURN, DRAWN_STEPS, SHORTER = 0.1, 256, 20_000
SEED = 4711
#: 1,000 points: twenty batches, ten links, five churns.
GRID = ("batch=1:20:20", "link_gb_s=10:55:10", "churn=0.01:0.21:5")
BARS = {"activities_per_s": 200_000, "cold_predict_s": 1.0, "whatif_1000_points_s": 60.0}


@attrs.frozen
class Case:
    """One way to run a step, and what it is called."""

    name: str
    run: Callable[[int], object]


def main() -> int:
    """Measure, print, and write the results if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", nargs="?", const="", metavar="FILE", help="write results (default: a dated file)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of a measurement; the median counts")
    parser.add_argument("--seconds", type=float, default=0.4, metavar="S", help="processor time of one measurement")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes of the what-if study")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0 or args.jobs < 1:
        parser.error("--rounds and --jobs must be >= 1, --seconds > 0")
    file = None
    if args.json is not None:
        file = Path(args.json) if args.json else RESULTS / f"{dt.datetime.now(dt.UTC).date()}-simulator-speed.json"
        check_place(file)
    busy = busy_cores()
    told: dict[str, Any] = {
        "what": "speed of the simulator; rates per second of processor time, medians",
        "provenance": provenance(), "busy_cores_at_start": busy, "rounds": args.rounds, "bars": BARS,
    }  # fmt: skip
    print(f"Other programs keep {busy:.1f} of {os.cpu_count()} cores busy.\n" if busy is not None else "")
    told["plans"] = [one_plan(selector, runtime, args) for selector, runtime in METHODS]
    told["cold_predict"] = cold_predict(args.rounds)
    told["whatif"] = whatif(args.jobs)
    if file is not None:
        write_whole(file, json.dumps(told, indent=1) + "\n")
        print(f"\nWritten: {file}")
    return 0


def one_plan(selector: str, runtime: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rates of one method on the 8B shape, 128K tokens, batch 8, an H200."""
    scenario = Scenario(selector=selector, runtime=runtime)
    pair, machine = scenario.combination(), scenario.machine()
    plan = plan_of(scenario, pair)
    facts = [facts_of(scenario.turned(churn=churn), pair, plan)[0] for churn in CHURNS]
    context = attrs.evolve(context_of(scenario, pair, machine), resident_layers=plan.resident_layers)
    simulator = Simulator(plan, kernel_work(plan, context, pair.selector), machine)
    bills = [simulator.ready(simulator.prices(fact)) for fact in facts]
    cases = [
        Case("constant: simulated", lambda i: simulator.run(bills[i])),
        Case("constant: no memory of windows", lambda i: simulator.run(bills[i], remember=False)),
        Case("constant: every event through the loop", lambda i: simulator.run(bills[i], coalesce=False)),
        Case("constant: work, prices and simulated", lambda i: simulator.step(facts[i])),
        Case("constant: work, prices, simulated, spans", lambda i: simulator.step(facts[i]).spans()),
    ]
    rates = in_turns(plan, cases, args.rounds, args.seconds)
    fresh = functools.partial(Simulator, plan, kernel_work(plan, context, pair.selector), machine)
    rates |= drawn_in_turns(fresh, drawn(facts[0], plan, pair.spec), len(plan.ops), args.rounds)
    print(f"{selector} x {runtime}: {len(plan.ops)} operations a step")
    rows = {}
    for name, (steps_per_s, ratio) in rates.items():
        activities = steps_per_s * len(plan.ops)
        rows[name] = {"activities_per_s": activities, "steps_per_s": steps_per_s, "of_bare_loop": ratio}
        print(f"  {name:42} {activities:11,.0f} activities/s {steps_per_s:8,.0f} steps/s {ratio:6.2f} of the bare loop")
    return {"selector": selector, "runtime": runtime, "operations": len(plan.ops), "rates": rows}


def drawn(like: StepFacts, plan: StepPlan, spec: BlockSpec) -> list[StepFacts]:
    """Facts of steps in a row that all differ; misses are binomial, so that a layer's sum spreads over many values."""
    rng = np.random.default_rng(SEED)
    share = DRAWN_CHURN * spec.budget / spec.free if like.misses.any() else 0.0
    lengths = like.lengths - DRAWN_STEPS - rng.integers(0, SHORTER, like.lengths.size)
    made = []
    for step in range(DRAWN_STEPS):
        misses = rng.binomial(spec.free, share, like.misses.shape)
        misses[: plan.resident_layers] = 0
        opened = np.zeros_like(misses) + ((lengths + step - 1) % spec.block == 0)[None, :, None]
        misses = np.minimum(misses, like.selected - opened)
        made.append(attrs.evolve(like, misses=misses, opened=opened, lengths=lengths + step))
    return made


def drawn_in_turns(
    fresh: Callable[[], Simulator], facts: list[StepFacts], operations: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """As in_turns, of steps that are run once each, by a new simulator every time; prices are made before."""
    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for remember, found in rates.items():
            simulator = fresh()
            bills = [simulator.ready(simulator.prices(fact)) for fact in facts]
            loops = [rate(bare_case(operations), 0.05)]
            began_s = time.process_time()
            for bill in bills:
                simulator.run(bill, remember=remember)
            steps_per_s = len(bills) / (time.process_time() - began_s)
            loops.append(rate(bare_case(operations), 0.05))
            found.append((steps_per_s, steps_per_s / statistics.mean(loops)))
    names = {True: "drawn: simulated", False: "drawn: no memory of windows"}
    return {names[remember]: medians(found) for remember, found in rates.items()}


def medians(found: list[tuple[float, float]]) -> tuple[float, float]:
    """The median rate, and the median ratio to the bare loop."""
    return statistics.median(rate for rate, _ in found), statistics.median(ratio for _, ratio in found)


def bare_case(operations: int) -> Case:
    """SimPy's loop with as many timeouts as a step has operations."""
    return Case("bare SimPy loop", lambda _: bare_loop(operations))


def in_turns(plan: StepPlan, cases: list[Case], rounds: int, least_s: float) -> dict[str, tuple[float, float]]:
    """Steps per second of processor time, and their ratio to the bare loop.

    Medians of rounds, in each of which every case has its turn; a ratio is to the same round's loop.
    """
    every = [*cases, bare_case(len(plan.ops))]
    found: dict[str, list[float]] = {case.name: [] for case in every}
    for case in every:
        for i in range(len(CHURNS)):
            case.run(i)
    for _ in range(rounds):
        for case in every:
            found[case.name].append(rate(case, least_s))
    loops = found["bare SimPy loop"]
    return {name: medians([(r, r / loop) for r, loop in zip(own, loops, strict=True)]) for name, own in found.items()}


def rate(case: Case, least_s: float) -> float:
    """Steps per second of processor time, over at least `least_s` of it."""
    steps, began_s = 0, time.process_time()
    while (took_s := time.process_time() - began_s) < least_s:
        for i in range(len(CHURNS)):
            case.run(i)
        steps += len(CHURNS)
    return steps / took_s


def bare_loop(timeouts: int) -> None:
    """As many timeouts one after another as a step has operations, with nothing else: what SimPy itself costs."""
    env = simpy.Environment()
    env.process(_timeouts(env, timeouts))
    env.run()


def _timeouts(env: simpy.Environment, count: int) -> Generator[simpy.Event, None, None]:
    for _ in range(count):
        yield env.timeout(1000)


def cold_predict(rounds: int) -> dict[str, Any]:
    """Wall-clock and processor seconds of `sparda predict` in a fresh process."""
    walls, own = [], []
    for _ in range(rounds):
        wall_s, cpu_s, _ = command("predict", "--json")
        walls.append(wall_s)
        own.append(cpu_s)
    wall_s, cpu_s = statistics.median(walls), statistics.median(own)
    print(f"\ncold `sparda predict`: {wall_s:.2f} s, of which {cpu_s:.2f} s of processor time (median of {rounds})")
    return {"wall_s": wall_s, "processor_s": cpu_s, "walls_s": walls}


def whatif(jobs: int) -> dict[str, Any] | None:
    """Points per second of a study of 1,000 points by the command, processes started and rows gathered."""
    if importlib.util.find_spec("sparda_core.cli.whatif") is None:
        print("\n`sparda whatif` was not measured: this version has no such command")
        return None
    wall_s, cpu_s, out = command("whatif", "--grid", *GRID, "--jobs", str(jobs), "--json")
    points = len(json.loads(out)["rows"])
    rate_told = f"{points / wall_s:,.0f} a second, {1000 * cpu_s / points:.1f} ms of processor time a point"
    print(f"\n`sparda whatif`: {points} points in {wall_s:.1f} s on {jobs} processes: {rate_told}")
    return {"points": points, "jobs": jobs, "wall_s": wall_s, "processor_s": cpu_s, "points_per_s": points / wall_s}


def command(*words: str) -> tuple[float, float, str]:
    """Run `sparda WORDS` in a fresh process: wall-clock seconds, processor seconds, what it printed."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "sparda_core.cli.main", *words], capture_output=True, text=True, check=False
    )
    took_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"sparda {' '.join(words)}: {done.stderr.strip()}")
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


if __name__ == "__main__":
    sys.exit(main())
