"""Top-k and the residency diff: are they right, and how long do they take?

python -m benchmarks.gpu.selection [--json FILE]

Without a GPU the checks run by Triton's interpreter at a tiny size, and nothing is timed.
`hot` finds tables and scores in L2, `cold` comes after 64 MiB of other traffic, whose own time is taken off.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch

from benchmarks.gpu.keep import keep
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
#: Layers of a graph, one launch each; share of a layer's free blocks that its slots lack.
LAYERS, CHURN = 32, 0.15
SCRUB = 64 * 2**20


@attrs.frozen(kw_only=True, eq=False)
class Load:
    """One layer of `places` rows at the end of their context, and the scores to select by."""

    world: World
    scores: torch.Tensor

    @classmethod
    def of(cls, places: int, slots: int, seed: int) -> Load:
        """Normal scores; empty slots."""
        made = torch.Generator().manual_seed(seed)
        world = World.of(SPEC, places=places, heads=HEADS, slots=slots, blocks=BLOCKS, seed=seed)
        world.start(torch.full((places,), BLOCKS * SPEC.block - 2), tick=1000)
        return cls(world=world, scores=strided(torch.randn(places, HEADS, BLOCKS, generator=made)))

    def launch(self, kind: str, tick: torch.Tensor) -> None:
        """One launch of one kind."""
        world, scores = self.world, self.scores
        tables, policy = (world.slots, world.host), kind.rpartition(" ")[2]
        if kind == "choose":
            choose_blocks(scores, world.position, SPEC, world.choice)
        elif kind.startswith("choose+diff"):
            choose_and_diff(scores, world.position, SPEC, world.choice, *tables, policy, tick, world.diff)
        else:
            diff_slots(world.choice, world.position, *tables, policy, scores, tick, world.diff)

    def fill(self, seed: int) -> None:
        """Slots full of blocks at random ages, among them the selection but for CHURN of its free ones."""
        self.launch("choose", self.world.tick)
        slots, blocks = self.world.slots, self.world.choice.blocks
        made = torch.Generator(DEVICE).manual_seed(seed)
        shape = (*blocks.shape[:2], BLOCKS)
        chosen = torch.zeros(*blocks.shape[:2], BLOCKS + 1, dtype=torch.bool, device=DEVICE)
        chosen.scatter_(2, torch.where(blocks < 0, BLOCKS, blocks).long(), value=True)
        at = torch.arange(BLOCKS, device=DEVICE)
        free = (at >= SPEC.sink) & (at < BLOCKS - 1 - SPEC.local)
        lacks = chosen[..., :-1] & free & (torch.rand(shape, device=DEVICE, generator=made) < CHURN)
        prefer = torch.rand(shape, device=DEVICE, generator=made) + 2 * chosen[..., :-1] - 9 * lacks.float()
        count = min(slots.held.shape[2], int((~lacks).sum(-1).min()))
        held = prefer.topk(count).indices
        held = held.gather(2, torch.rand(held.shape, device=DEVICE, generator=made).argsort(-1))
        slots.held.fill_(-1)
        slots.where.fill_(-1)
        slots.held[..., :count] = held.int()
        slots.where.scatter_(2, held, torch.arange(count, device=DEVICE).int().expand(held.shape))
        slots.used.copy_(torch.randint(1, 900, slots.used.shape, device=DEVICE, generator=made))


def check(policy: str, *, places: int, slots: int, steps: int, fused: bool) -> None:
    """Some steps beside the reference, one place inactive in the second; raises AssertionError where they differ."""
    made = torch.Generator().manual_seed(slots)
    load = Load.of(places, slots, seed=slots)
    world, model = load.world, model_of(load.world)
    first = BLOCKS * SPEC.block - 2 - steps
    for step in range(steps):
        at = torch.full((places,), first + step) - SPEC.block * torch.arange(places)
        at[-1] = -1 if step == 1 else at[-1]
        world.start(at, tick=step + 1)
        for kind in [f"choose+diff {policy}"] if fused else ["choose", f"diff {policy}"]:
            load.launch(kind, world.tick)
        check_step(world, model, expect(world, model, world.choice.blocks, policy, load.scores, step + 1))
        check_choice(world, load.scores)
        load.scores.add_(0.1 * torch.randn(load.scores.shape, generator=made).to(DEVICE))


def check_choice(world: World, scores: torch.Tensor) -> None:
    """The selection is the reference's."""
    from sparda_core.kernels.topk.reference import choose_blocks as reference

    want = reference(scores[:, :, None].cpu(), world.position.cpu().long()[:, None], world.spec)[:, :, 0]
    assert torch.equal(world.choice.blocks.cpu(), want), "the selection is not the reference's"


def times(batch: int, factor: int) -> Iterator[dict[str, Any]]:
    """Rows of the table for one batch and `factor` x budget slots."""
    loads = [Load.of(batch, factor * SPEC.budget, seed) for seed in range(LAYERS)]
    kinds = ["choose"] if factor == 1 else []
    kinds += [f"diff {policy}" for policy in POLICIES if factor == 1 or policy != "last-selection"]
    for kind in [*kinds, "choose+diff lru"]:
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
    """Microseconds a launch, and misses a (row, head) of it. Tables are put back before every replay."""
    waste = torch.zeros(SCRUB, dtype=torch.uint8, device=DEVICE)
    kept = []
    for seed, load in enumerate(loads):
        load.fill(seed)
        slots = load.world.slots
        kept += [(tensor, tensor.clone()) for tensor in (slots.held, slots.used, slots.where)]

    def all_layers(*, run: bool = True) -> None:
        for load in loads:
            if scrub:
                waste.zero_()
            if run:
                load.launch(kind, load.world.tick)

    def between() -> None:
        for tensor, was in kept:
            tensor.copy_(was)
        for load in loads:
            load.world.diff.count.zero_()

    total = replay_us(all_layers, between)
    misses = statistics.mean(float(load.world.diff.misses.float().mean()) for load in loads) if "diff" in kind else 0.0
    if scrub:
        total -= replay_us(lambda: all_layers(run=False), between)
    return total / len(loads), misses


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
    keep(args.json, "top-k and diff", rows)


def _width(name: str) -> int:
    return 20 if name == "kernel" else max(8, len(name))


if __name__ == "__main__":
    main()
