"""Training on a GPU: memory of a step against the plan, seconds of a step, and the same losses as on a CPU.

    python -m benchmarks.gpu.train --json benchmarks/results/train.json
    python -m benchmarks.gpu.train --shapes smollm2-135m --windows 8192          # a minute
    python -m benchmarks.gpu.train --shapes minicpm4.1-8b --windows 131072 --only block/fine --steps 3
    python -m benchmarks.gpu.train --check        # the correctness part alone; all there is without a GPU

Weights are random: time and memory do not depend on them. A case is one row of `window` tokens and `positions`
queries a step, bf16 model, float32 scores; memory is what torch's allocator held at most from the third step on, time
the mean of these steps.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import attrs
import torch

import tests.gpu_env  # noqa: F401  decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from sparda_core.distill.config import REFERENCE, TrainConfig
from sparda_core.distill.history import Step
from sparda_core.distill.memory import plan_memory
from sparda_core.distill.train import Habits, train
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.synthetic import synthetic_model
from sparda_core.models.tiny import random_weights
from sparda_core.shapes import SHAPES, BlockSpec, ModelShape

GIB = 1 << 30
UNTIMED = 2
RUNS = (("block", "coarse"), ("block", "fine"), ("top", "fine"), (REFERENCE, "fine"))
NAMES = {f"{objective}/{teacher}": (objective, teacher) for objective, teacher in RUNS}
TINY = ModelShape(
    name="tiny", layers=3, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=16, vocab=97, context=512,
    tied_embeddings=True,
)  # fmt: skip
TINY_SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=6)


def losses_on(device: str, objective: str, teacher: str) -> list[float]:
    """Losses of a few steps of a tiny model in float32."""
    weights = {name: w.to(device) for name, w in random_weights(TINY, seed=0, dtype=torch.float32).items()}
    stream = torch.randint(0, 97, (1200,), generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"spec": TINY_SPEC, "window": 256, "steps": 4, "batch": 2, "teacher": teacher}
    if objective == REFERENCE:
        config = TrainConfig.reference(**options)
    else:
        config = TrainConfig(objective=objective, first_position=64, positions=64, **options)
    return list(train(Decoder(DecoderConfig(shape=TINY), weights), stream, config).losses)


def check(device: str) -> None:
    """Every objective learns the same on `device` as on a CPU, and the loss falls or stays finite."""
    for objective, teacher in RUNS:
        got, want = losses_on(device, objective, teacher), losses_on("cpu", objective, teacher)
        wrong = max(abs(a - b) / max(1e-6, abs(b)) for a, b in zip(got, want, strict=True))
        assert wrong < 2e-3, f"{objective}, {teacher}: losses {got} on {device}, {want} on a CPU"


def config_of(objective: str, teacher: str, window: int, args: argparse.Namespace, spec: BlockSpec) -> TrainConfig:
    """A run of a few steps, one row each; the published objective as published but for batch and positions."""
    options: dict[str, Any] = {
        "spec": spec, "window": window, "steps": args.steps, "batch": 1, "teacher": teacher,
        "positions": args.positions, "chunk_mib": args.chunk_mib,
    }  # fmt: skip
    if objective == REFERENCE:
        return TrainConfig.reference(**options)
    first = min(window - args.positions, window // 8)
    earliest = (spec.sink + spec.local + 2) * spec.block
    return TrainConfig(objective=objective, init="random", first_position=max(first, earliest), **options)


def measure(decoder: Decoder, config: TrainConfig) -> dict[str, Any]:
    """Seconds of a step and the most memory that was held during it, beside the plan."""
    device = decoder.device
    source = torch.Generator().manual_seed(1)
    stream = torch.randint(0, decoder.shape.vocab, (config.window * 2,), generator=source)
    marks: list[Any] = []

    def mark(told: Step) -> None:
        if told.step == UNTIMED:
            torch.cuda.reset_peak_memory_stats(device)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        marks.append(event)

    before = torch.cuda.memory_allocated(device)
    losses = train(decoder, stream, config, Habits(on_step=mark)).losses
    torch.cuda.synchronize(device)
    plan = plan_memory(decoder.shape, config)
    held = torch.cuda.max_memory_allocated(device)
    return {
        "shape": decoder.shape.name, "objective": config.objective, "teacher": config.teacher, "states": config.states,
        "window": config.window, "positions": config.positions,
        "step_s": round(marks[UNTIMED - 1].elapsed_time(marks[-1]) / 1000 / (config.steps - UNTIMED), 4),
        "held_gib": round(held / GIB, 3), "model_gib": round(before / GIB, 3),
        "plan_gib": round(plan.peak / GIB, 3), "all_scores_gib": round(plan.full / GIB, 1),
        "plan": attrs.asdict(plan), "losses_nats": [round(loss, 5) for loss in losses],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Check, then measure every case; a case that does not fit says so and the next one goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["smollm2-135m", "minicpm4.1-8b"])
    parser.add_argument("--windows", nargs="+", type=int, default=[8192, 65536])
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--chunk-mib", type=int, default=2048)
    parser.add_argument("--published-up-to", type=int, default=16384, help="its states cost a teacher's pass a layer")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="RUN", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--steps", type=int, default=5, help=f"{UNTIMED} of them are not measured")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.steps <= UNTIMED:
        parser.error(f"argument --steps: {args.steps} must be > {UNTIMED}, which are not measured")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check(device)
    print(f"losses on {device} are those of a CPU: {len(RUNS)} objectives")
    if args.check or device == "cpu":
        return 0
    rows: list[dict[str, Any]] = []
    for name in args.shapes:
        decoder = synthetic_model(SHAPES[name], device=device, dtype=torch.bfloat16, forecast=False).decoder
        spec = BlockSpec(local=32, budget=96) if name != "smollm2-135m" else BlockSpec()
        for window, (objective, teacher) in itertools.product(args.windows, map(NAMES.__getitem__, args.only)):
            if objective == REFERENCE and window > args.published_up_to:
                continue
            torch.cuda.empty_cache()
            try:
                rows.append(measure(decoder, config_of(objective, teacher, window, args, spec)))
            except torch.OutOfMemoryError as error:
                rows.append({"shape": name, "objective": objective, "window": window, "short": str(error)[:120]})
            print({key: value for key, value in rows[-1].items() if key not in ("plan", "losses_nats")}, flush=True)
        del decoder
    if args.json:
        keep(args.json, "memory and time of a training step", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
