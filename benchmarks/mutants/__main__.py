"""Run the mutants: `python -m benchmarks.mutants` (or `make mutants`); see docs/mutants.md.

usage: python -m benchmarks.mutants [NAME ...] [--jobs N] [--resume] [--json] [--out FILE] [--page] [--limit-s S]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import attrs
from rich.console import Console
from rich.progress import Progress

from benchmarks.kept import add_kept, parser_of, run_kept
from benchmarks.mutants.declared import LIST, ROOT, Mutant, chosen, copy_tree, read_mutants
from benchmarks.mutants.kept import PAGE, page, read_outcomes, write_outcomes
from benchmarks.mutants.runs import CAUGHT, HUNG, Copy, Outcome
from sparda_core.bench.provenance import provenance
from sparda_core.errors import ConfigError
from sparda_core.files import parse_json, write_whole

OUT = ROOT / "benchmarks" / "results" / "mutants.json"


def main(argv: Sequence[str] | None = None) -> int:
    """0 where every mutant was noticed, 1 where one was not, 2 for a list that cannot be run."""
    args = _parser().parse_args(argv)
    screen = Console(stderr=True, soft_wrap=True)
    code, found = run_kept(lambda: _judged(args, screen), args.out, screen)
    if found is None:
        return code
    mutants, outcomes = found
    if args.json:
        print(json.dumps([attrs.asdict(outcome) for outcome in outcomes], indent=1))
    if args.page:
        write_whole(ROOT / PAGE, page(mutants, parse_json(args.out.read_bytes())))
    unnoticed = [outcome for outcome in outcomes if outcome.result not in (CAUGHT, HUNG)]
    screen.print(f"{len(outcomes) - len(unnoticed)} of {len(outcomes)} mutants noticed", markup=False)
    return 1 if unnoticed else 0


def _judged(args: argparse.Namespace, screen: Console) -> tuple[Sequence[Mutant], list[Outcome]]:
    """Every mutant of the list, and the outcomes of those asked for."""
    mutants = read_mutants(ROOT / LIST)
    for mutant in mutants:
        mutant.applied(ROOT)
        mutant.check_tests(ROOT)
    return mutants, _run(mutants, chosen(mutants, args.names), args, screen)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.mutants", __doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies of the tree, and tests at a time")
    add_kept(parser, OUT, resume="keep outcomes of --out whose files have not changed")
    parser.add_argument("--page", action="store_true", help=f"fill {PAGE}")
    parser.add_argument("--limit-s", type=float, default=240, help="most seconds of one run of tests")
    return parser


def _run(
    mutants: Sequence[Mutant], wanted: Sequence[Mutant], args: argparse.Namespace, screen: Console
) -> list[Outcome]:  # fmt: skip
    if args.jobs < 1:
        raise ConfigError(f"jobs={args.jobs} must be >= 1")
    if not 1 <= args.limit_s < 100_000:
        raise ConfigError(f"limit_s={args.limit_s:g} must be between 1 and 100,000 seconds")
    kept = read_outcomes(args.out)
    digests = {mutant.name: mutant.digest(ROOT) for mutant in mutants}
    # Of mutants that are not asked for, earlier outcomes stay; of the others, with --resume, those still true.
    names = {mutant.name for mutant in wanted}
    known = {
        name: kept[name] for name in digests
        if name in kept and (name not in names or (args.resume and kept[name].digest == digests[name]
                                                   and kept[name].result in (CAUGHT, HUNG)))
    }  # fmt: skip
    todo = [mutant for mutant in wanted if mutant.name not in known]
    about = provenance()
    with _copies(min(args.jobs, len(todo)), args.limit_s) as copies, Progress(console=screen, transient=True) as bars:
        _check_tests_pass(todo, copies, screen)
        bar = bars.add_task("mutants", total=len(todo))
        for outcome in _outcomes(todo, digests, copies):
            known[outcome.name] = outcome
            write_outcomes(args.out, [known[name] for name in digests if name in known], about)
            screen.print(f"{outcome.result:7} {outcome.name} ({outcome.took_s:.0f} s) {outcome.by}", markup=False)
            if outcome.says:
                screen.print(outcome.says, markup=False)
            bars.advance(bar)
    return [known[mutant.name] for mutant in wanted]


@contextlib.contextmanager
def _copies(count: int, limit_s: float) -> Iterator[list[Copy]]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = []
        for number in range(count):
            root = Path(folder).resolve() / str(number)
            root.mkdir()
            copy_tree(root)
            made.append(Copy(root, limit_s=limit_s))
            made[-1].check()
        try:
            yield made
        finally:
            for copy in made:
                copy.close()


def _check_tests_pass(todo: Sequence[Mutant], copies: Sequence[Copy], screen: Console) -> None:
    """Raise ConfigError where a test fails without any mutant: then it notices nothing."""
    tests = sorted({test for mutant in todo for test in mutant.tests})
    parts = [tuple(tests[start :: len(copies)]) for start in range(len(copies))]
    screen.print(f"{len(tests)} tests without a mutant", markup=False)
    with ThreadPoolExecutor(max(1, len(copies))) as pool:
        try:
            results = list(pool.map(lambda pair: pair[0].passes(pair[1]), zip(copies, parts, strict=True)))
        except BaseException:
            for copy in copies:
                copy.stop()
            raise
    failed = [said[-2000:] for passed, said in results if not passed]
    if failed:
        raise ConfigError(f"tests named by mutants fail without any: mend them first\n{failed[0]}")


def _outcomes(todo: Sequence[Mutant], digests: dict[str, str], copies: Sequence[Copy]) -> Iterator[Outcome]:
    """Outcomes as they come, in any order."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def work(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return copy.run(mutant, digests[mutant.name])
        finally:
            free.put(copy)

    with ThreadPoolExecutor(max(1, len(copies))) as pool:
        futures = [pool.submit(work, mutant) for mutant in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


if __name__ == "__main__":
    sys.exit(main())
