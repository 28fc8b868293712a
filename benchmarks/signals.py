"""Real signals at random moments of every call on a session: how many came, and what they broke.

usage: python -m benchmarks.signals [--gpu] [--rounds N] [--seeds N] --out FILE

Runs `python -m tests.chaos.signals` (with --gpu `tests.gpu.session.signals`) for every pair of selector and runtime and
every seed, each in a process of its own. A process ends at the first thing wrong, which is kept with what it said last.
Exit code 0: nothing was wrong; 1: something was; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparda_core.bench.provenance import provenance
from sparda_core.files import check_place, write_whole
from tests.chaos.signals import told_elsewhere
from tests.chaos.story import PAIRS

MODULES = {False: ("tests.chaos.signals", len(PAIRS)), True: ("tests.gpu.session.signals", 3)}
COUNTED = ("calls", "signals", "raised", "twice")


def run(module: str, pair: int, seed: int, rounds: int) -> dict[str, Any]:
    """What one process counted, or why it ended before."""
    one: dict[str, Any] = {"pair": pair, "seed": seed, "rounds": rounds}
    try:
        return one | told_elsewhere(module, "--pair", pair, "--seed", seed, "--rounds", rounds)
    except AssertionError as wrong:
        return one | {"failure": str(wrong)[-4000:]}


def document(module: str, done: Sequence[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """Sums, and each process."""
    return {
        "what": f"real signals at random moments of calls on a session: python -m {module}",
        **{name: sum(one.get(name, 0) for one in done) for name in COUNTED},
        "failures": sum("failure" in one for one in done), "processes": list(done), "provenance": about,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.signals", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="sessions on a GPU")
    parser.add_argument("--rounds", type=int, default=60, help="stories a process tells (default: 60)")
    parser.add_argument("--seeds", type=int, default=4, help="processes a pair (default: 4)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the outcome is kept")
    args = parser.parse_args(argv)
    if min(args.rounds, args.seeds) < 1:
        parser.error(f"rounds={args.rounds} and seeds={args.seeds} must be >= 1")
    try:
        check_place(args.out)
    except OSError as wrong:
        parser.error(f"out={str(args.out)!r}: {wrong}")
    module, pairs = MODULES[args.gpu]
    done: list[dict[str, Any]] = []
    about = provenance()
    for seed in range(args.seeds):
        for pair in range(pairs):
            done.append(run(module, pair, seed, args.rounds))
            told = {name: value for name, value in done[-1].items() if name != "failure"}
            print(*(f"{name} {value}" for name, value in told.items()), done[-1].get("failure", ""), flush=True)
            write_whole(args.out, json.dumps(document(module, done, about), indent=1) + "\n")
    made = document(module, done, about)
    print(f"{made['signals']} signals in {made['calls']} calls, {made['raised']} raised; {made['failures']} failures")
    return 1 if made["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
