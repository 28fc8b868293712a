"""`sparda evaluate` on a GPU: held to the CPU in float64, then timed on a random model of SmolLM2's shape.

python -m benchmarks.gpu.quality [--windows 1] [--json FILE]      without a GPU: the check alone, tiny

Needs neither weights nor texts. The timing is of one window of 8,192 tokens (positions 4,096 to 8,191, every method,
five budgets) and of one prompt of 4,096, in bfloat16 with scores in float32; from it the time of a whole study follows.

Predicted before measuring, on an H200, seconds: choices 3 to 4, misses 3 to 4 (three budgets), a path 0.15 to 0.2, a
prompt under every method and three budgets 0.6; sixteen windows under eight methods and five budgets 3.5 to 4.5
minutes, 24 prompts of each of four tasks one minute.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import tests.gpu_env
from benchmarks.gpu.keep import keep
from sparda_core.evaluate.study.config import StudyConfig
from sparda_core.evaluate.study.judge import judge_choices, judge_path, judge_task
from sparda_core.evaluate.study.methods import DEFAULT, parse_methods
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.evaluate.tasks import Task
from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import TINY_SHAPE, random_forecast, tiny_model
from sparda_core.shapes import BlockSpec, ModelShape, named_shape

DEVICE = tests.gpu_env.DEVICE
TINY = StudyConfig(
    spec=BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=6), window=200, first=120, budgets=(6, 9),
    path_budgets=(6,), slot_budgets=(6, 9), task_budgets=(6,),
)  # fmt: skip
#: Kinds whose scores a device draws for itself.
DRAWN = "random"
Numbers = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Check, then time where there is a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--windows", type=int, default=1, help="windows timed; the first is warmed up by one more")
    parser.add_argument("--json", metavar="FILE", help="keep the times")
    args = parser.parse_args(argv)
    worst = check(DEVICE)
    print(f"every method on {DEVICE} as on the CPU in float64: largest difference {worst:.1e}")
    if DEVICE.type != "cuda":
        print("no GPU here: nothing is timed")
        return 0
    rows = timed(named_shape("smollm2-135m"), StudyConfig(), windows=args.windows)
    for name, seconds in rows.items():
        print(f"{name:<28} {seconds:8.3f} s")
    keep(args.json, "seconds of the parts of a study, random model of SmolLM2-135M's shape", rows)
    return 0


def check(device: torch.device) -> float:
    """Every figure of a tiny study on `device` against the CPU's in float64; the largest difference, asserted small."""
    ours, theirs = (_tiny(where) for where in (device, torch.device("cpu")))
    pairs = list(zip(_flat(ours), _flat(theirs), strict=True))
    assert len(pairs) > 300, len(pairs)
    assert all(name == other for (name, _), (other, _) in pairs)
    worst = max(abs(a - b) for (_, a), (_, b) in pairs if a == a and b == b)  # noqa: PLR0124 - NaN: not measured
    assert worst < 1e-6, max(pairs, key=lambda pair: abs(pair[0][1] - pair[1][1]))
    return worst


def _tiny(device: torch.device) -> Numbers:
    decoder = tiny_model(dtype=torch.float64, device=device, forecast=False).decoder
    return study_of_one(decoder, TINY_SHAPE, TINY, [name for name in DEFAULT if name != DRAWN])


def study_of_one(
    decoder: Decoder, shape: ModelShape, config: StudyConfig, names: Sequence[str],
    measure: Callable[[str, Callable[[], Any]], Any] = lambda _name, call: call(),
) -> Numbers:  # fmt: skip
    """Choices and paths of one random window and one random prompt; `measure` is called around every part."""
    grid = (config.spec.window, config.spec.stride)
    methods = parse_methods((*names, "query@2/2"), spec=config.spec, forecasts={"f": grid})
    scorer = Scorer(forecasts={"f": random_forecast(shape, seed=1, dtype=torch.float32)})
    ids = torch.randint(0, shape.vocab, (config.window,), generator=torch.Generator().manual_seed(2)).to(decoder.device)
    dense, found = measure("choices and misses", lambda: judge_choices(decoder, ids, methods, config, scorer))
    for method in methods:
        for budget in config.path_budgets:
            follow = functools.partial(judge_path, decoder, dense, method, budget, config=config, scorer=scorer)
            path = measure(f"path {method.name}", follow)
            found.setdefault("path", {}).setdefault(method.name, {})[str(budget)] = path
    some = ids.tolist()
    task = Task(name="copy", prompt=tuple(some[:-8][: config.task_tokens]), answer=tuple(some[-8:]), asked=20)
    found["task"] = measure(
        "a prompt", lambda: judge_task(decoder, task, methods, config=config, scorer=scorer, device=decoder.device)
    )
    return dict(found)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key in value:
            yield from _flat(value[key], f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _flat(item, f"{name}.{at}")
    else:
        yield name, float(value)


def timed(shape: ModelShape, config: StudyConfig, *, windows: int) -> dict[str, float]:
    """Seconds of each part, mean over windows after one that warms up; and of a whole study of 16 windows."""
    decoder = tiny_model(shape, dtype=torch.bfloat16, device=DEVICE, forecast=False).decoder
    spent: dict[str, list[float]] = {}

    def measure(name: str, call: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        spent.setdefault(name, []).append(time.perf_counter() - start)
        return result

    study_of_one(decoder, shape, config, DEFAULT)
    for _ in range(max(1, windows)):
        study_of_one(decoder, shape, config, DEFAULT, measure)
    rows = {name: sum(each) / len(each) for name, each in spent.items()}
    paths = sum(each * len(config.path_budgets) for name, each in rows.items() if name.startswith("path"))
    rows["a window"] = rows["choices and misses"] + paths
    rows["16 windows"] = 16 * rows["a window"]
    rows["24 prompts of four tasks"] = 96 * rows["a prompt"]
    rows["memory, GB"] = torch.cuda.max_memory_allocated() / 1e9
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
