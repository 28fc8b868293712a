"""Fill every page that is made from data: python -m benchmarks.pages [NAME ...] (or `make pages`; no GPU)

Pages of predictions come first and predict again, so this follows a change of a price or of a shipped profile; pages
of measurements are filled from what is kept under benchmarks/results. docs/mutants.md is not among them (`make
mutants`), nor are docs/laws.md and docs/profiles.md, whose tests print what should stand there. A step that fails ends
the run and names the steps that are left. Tests hold each page to its data, and predictions to the code of today.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from sparda_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@attrs.frozen
class Step:
    """One program of this folder, with its words; `pages` are those that it fills, below the root.

    folder  the program wants a fresh folder, the last of its words
    """

    name: str
    words: tuple[str, ...]
    pages: tuple[str, ...]
    folder: bool = False


def newest(pattern: str) -> str:
    """The last of the kept results by name, which begins with a date, below the root."""
    found = sorted(RESULTS.glob(pattern))
    if not found:
        raise ConfigError(f"benchmarks/results has no {pattern}: measure first")
    return found[-1].relative_to(ROOT).as_posix()


#: Cells that are judged anew, by the name that the page gives them.
JUDGED = {
    "main": "*[0-9]-validated-h200", "second": "*-validated-second-h200", "earlier": "*[0-9]-decode-h200.json",
}  # fmt: skip


def steps() -> tuple[Step, ...]:
    """All steps, in order: those that predict, then those that read."""
    judged = tuple(f"{name}={newest(pattern)}" for name, pattern in JUDGED.items())
    return (
        Step("cases", ("benchmarks.cases_page",), ("docs/cases.md",)),
        Step("leads-and-grids", ("benchmarks.leads_and_grids", "--page"), ("docs/leads-and-grids.md",)),
        Step("published", ("benchmarks.published_page",), ("docs/published.md", "README.md")),
        Step("readme", ("benchmarks.readme_page",), ("README.md",)),
        Step("validation", ("benchmarks.validation_page", *judged), ("docs/validation.md", "docs/error-budget.md")),
        Step("lookahead", ("benchmarks.lookahead", "--out"), ("docs/lookahead.md",), folder=True),
        Step("decode", ("benchmarks.decode_page",), ("docs/decode.md",)),
        Step("quality", ("benchmarks.quality_page",), ("docs/quality.md",)),
    )


def run(step: Step) -> int:
    """Its exit code."""
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        words = [sys.executable, "-m", *step.words, *((folder,) if step.folder else ())]
        return subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode


def fill(chosen: Sequence[Step], run: Callable[[Step], int] = run) -> int:
    """Run steps in order; the exit code of the first that fails, or 0."""
    for at, step in enumerate(chosen):
        began_s = time.monotonic()
        code = run(step)
        what = f"{step.name}: {', '.join(step.pages)}, {time.monotonic() - began_s:.0f} s"
        if code:
            left = " ".join(one.name for one in chosen[at:])
            print(f"{what}: failed ({code}); go on with: python -m benchmarks.pages {left}", file=sys.stderr)
            return code
        print(what, flush=True)
    return 0


def chosen(names: Sequence[str], every: Sequence[Step]) -> list[Step]:
    """The steps of these names in the order of all; all where none is named. Raises ConfigError for an unknown one."""
    known = [step.name for step in every]
    if wrong := [name for name in names if name not in known]:
        raise ConfigError(f"name={wrong[0]!r} is unknown; known: {', '.join(known)}")
    return [step for step in every if step.name in names or not names]


def main(argv: Sequence[str] | None = None) -> int:
    """Fill what is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these steps (default: all)")
    args = parser.parse_args(argv)
    try:
        return fill(chosen(args.names, steps()))
    except ConfigError as wrong:
        parser.error(str(wrong))


if __name__ == "__main__":
    sys.exit(main())
