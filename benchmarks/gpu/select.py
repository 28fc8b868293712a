"""Top-k and the residency diff: are they right, and how long do they take?

python -m benchmarks.gpu.select [--json FILE]

Without a GPU the checks run by Triton's interpreter at a tiny size, and nothing is timed.
`hot` finds tables and scores in L2, `cold` comes after 64 MiB of other traffic, whose own time is taken off.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots  # isort: skip
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.policy import POLICIES
from sparda_core.shapes import BlockSpec
from tests.gpu.select.cases import World, strided
from tests.gpu.select.checks import check_step, expect, model_of

GPU = DEVICE.type == "cuda"
SPEC = BlockSpec(sink=1, local=32, budget=96) if GPU else BlockSpec(block=16, window=8, stride=8, local=1, budget=6)
HEADS, BLOCKS = (2, 2049) if GPU else (1, 20)
#: Device memory, bytes a second; a launch in a graph that the next one waits for, seconds.
MEMORY, LAUNCH = 4.2e12, 1.8e-6
#: Expected microseconds a launch, hot, from counted instructions, barriers and dependent loads; before measuring.
EXPECTED = {"choose": 4.0, "diff last-selection": 3.5, "diff lru": 4.5, "diff score": 5.0, "choose+diff lru": 7.0}
#: Layers that take turns, and selections of each that take turns: neighbours differ in about 10 % of their blocks.
LAYERS, TURNS, NOISE = 8, 4, 0.12
SCRUB = 64 * 2**20


@attrs.frozen(kw_only=True, eq=False)
class Load:
    """One layer of `places` rows at the end of their context, with several scores to select by."""

    world: World
    scores: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, places: int, slots: int, seed: int) -> Load:
        """Normal scores, neighbours in rank seldom apart; every list long enough for all turns."""
        made = torch.Generator().manual_seed(seed)
        world = World.of(SPEC, places=places, heads=HEADS, slots=slots, blocks=BLOCKS, seed=seed)
        room = places * HEADS * SPEC.budget * TURNS
        lists = {name: torch.zeros(room, dtype=torch.int32, device=DEVICE) for name in ("source", "target")}
        world = attrs.evolve(world, diff=attrs.evolve(world.diff, **lists))
        world.start(torch.full((places,), BLOCKS * SPEC.block - 2), tick=1)
        base = torch.randn(places, HEADS, BLOCKS, generator=made)
        drift = [NOISE * torch.randn(base.shape, generator=made) for _ in range(TURNS)]
        return cls(world=world, scores=tuple(strided(base + one) for one in drift))

    def launch(self, kind: str, turn: int, tick: torch.Tensor) -> None:
        """One launch of one kind."""
        world, scores = self.world, self.scores[turn]
        tables, policy = (world.slots, world.host), kind.rpartition(" ")[2]
        if kind == "choose":
            choose_blocks(scores, world.position, SPEC, world.choice)
        elif kind.startswith("choose+diff"):
            choose_and_diff(scores, world.position, SPEC, world.choice, *tables, policy, tick, world.diff)
        else:
            diff_slots(world.choice, world.position, *tables, policy, scores, tick, world.diff)


def check(policy: str, *, places: int, slots: int, steps: int, fused: bool) -> None:
    """Some steps beside the reference, one place inactive in the second; raises AssertionError where they differ."""
    load = Load.of(places, slots, seed=slots)
    world, model = load.world, model_of(load.world)
    first = BLOCKS * SPEC.block - 2 - steps
    for step in range(steps):
        at = torch.full((places,), first + step) - SPEC.block * torch.arange(places)
        at[-1] = -1 if step == 1 else at[-1]
        world.start(at, tick=step + 1)
        scores = load.scores[step % TURNS]
        if fused:
            load.launch(f"choose+diff {policy}", step % TURNS, world.tick)
        else:
            load.launch("choose", step % TURNS, world.tick)
            load.launch(f"diff {policy}", step % TURNS, world.tick)
        check_step(world, model, expect(world, model, world.choice.blocks, policy, scores, step + 1))
        check_choice(world, scores)


def check_choice(world: World, scores: torch.Tensor) -> None:
    """The selection is the reference's."""
    from sparda_core.kernels.topk.reference import choose_blocks as reference

    want = reference(scores[:, :, None].cpu(), world.position.cpu().long()[:, None], world.spec)[:, :, 0]
    assert torch.equal(world.choice.blocks.cpu(), want), "the selection is not the reference's"


def times(batch: int, factor: int) -> Iterator[dict[str, Any]]:
    """Rows of the table for one batch and `factor` x budget slots."""
    kinds = ["choose"] if factor == 1 else []
    kinds += [f"diff {policy}" for policy in POLICIES if factor == 1 or policy != "last-selection"]
    for kind in [*kinds, "choose+diff lru"]:
        loads = [Load.of(batch, factor * SPEC.budget, seed) for seed in range(LAYERS)]
        hot, misses = measure(loads, kind, scrub=False)
        cold, _ = measure(loads, kind, scrub=True)
        floor = (bytes_of(kind, batch, factor) / MEMORY + LAUNCH) * 1e6
        yield {
            "kernel": kind, "batch": batch, "slots": factor * SPEC.budget, "misses": round(misses, 1),
            "hot_us": round(hot, 2), "cold_us": round(cold, 2), "floor_us": round(floor, 2),
            "expected_us": EXPECTED.get(kind),
        }  # fmt: skip


def bytes_of(kind: str, batch: int, factor: int) -> float:
    """Bytes that a launch must touch, misses aside."""
    pair = 0.0
    if "choose" in kind:
        pair += 4 * (BLOCKS - SPEC.forced + SPEC.budget)
    if "diff" in kind:
        pair += 4 * (2 * factor * SPEC.budget + 4 * SPEC.budget)
    return pair * batch * HEADS


def measure(loads: list[Load], kind: str, *, scrub: bool) -> tuple[float, float]:
    """Microseconds a launch, and misses a (row, head) of it.

    A diff follows a selection that is not timed: turn t of a layer has its own copy of the selection.
    """
    jobs = [(load, turn) for turn in range(TURNS) for load in loads]
    # 16 bytes apart, so that one compiled kernel serves all.
    ticks = torch.arange(1, len(jobs) + 1, dtype=torch.int32, device=DEVICE)[:, None].repeat(1, 4)
    if kind.startswith("diff"):
        jobs = [(chosen(load, turn), turn) for load, turn in jobs]
    waste = torch.zeros(SCRUB, dtype=torch.uint8, device=DEVICE)

    def all_jobs(*, run: bool = True) -> None:
        for i, (load, turn) in enumerate(jobs):
            if scrub:
                waste.zero_()
            if run:
                load.launch(kind, turn, ticks[i, :1])

    def between() -> None:
        ticks.add_(len(jobs))
        for load in loads:
            load.world.diff.count.zero_()

    total = replay_us(all_jobs, between)
    misses = statistics.mean(float(load.world.diff.misses.float().mean()) for load in loads) if "diff" in kind else 0.0
    if scrub:
        total -= replay_us(lambda: all_jobs(run=False), between)
    return total / len(jobs), misses


def chosen(load: Load, turn: int) -> Load:
    """The same layer with a selection of its own, made by this turn's scores."""
    choice = attrs.evolve(
        load.world.choice, blocks=load.world.choice.blocks.clone(), counts=load.world.choice.counts.clone()
    )
    made = attrs.evolve(load, world=attrs.evolve(load.world, choice=choice))
    made.launch("choose", turn, load.world.tick)
    return made


def replay_us(work: Callable[[], None], between: Callable[[], None], replays: int = 9) -> float:
    """Median microseconds of a graph of `work`; `between` runs before each replay, not timed."""
    between()
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    between()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    taken = []
    for _ in range(replays + 2):
        between()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return statistics.median(taken[2:])


def main() -> None:
    """Check, then time, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    places, steps, factors = (2, 4, (1, 4)) if GPU else (2, 2, (1,))
    for policy in POLICIES:
        for factor in factors:
            check(policy, places=places, slots=factor * SPEC.budget, steps=steps, fused=factor != 1 or policy == "lru")
    print(f"checked against the reference: {', '.join(POLICIES)} at {factors} x {SPEC.budget} slots")
    if not GPU:
        return
    rows = [row for batch in (1, 16, 64) for factor in (1, 4) for row in times(batch, factor)]
    print("  ".join(f"{name:>{_width(name)}}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value!s:>{_width(name)}}" for name, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def _width(name: str) -> int:
    return 20 if name == "kernel" else max(8, len(name))


if __name__ == "__main__":
    main()
