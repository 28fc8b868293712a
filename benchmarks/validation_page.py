"""Judge measured cells, keep the verdicts as data, fill the pages from them. Needs no GPU and no torch.

    python -m benchmarks.validation_page earlier=benchmarks/results/2026-11-30-decode-h200.json
    python -m benchmarks.validation_page main=PATH cpu=PATH     # folders of `sparda validate`, or their documents
    python -m benchmarks.validation_page                        # only fill the pages, from verdicts that are there

Each NAME=PATH writes benchmarks/results/DATE-validation-NAME.json in place of the one that was there, and figures into
docs/images. A folder also tells parts by its timelines, and gives the picture of one step.
"""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console

from sparda_core.bench.validate.folder import SECOND, SHIPPED, Run, read_run
from sparda_core.bench.verdict import run
from sparda_core.bench.verdict.figures import plot_models, plot_scatter
from sparda_core.bench.verdict.judged import Verdict, read_verdict, write_verdict
from sparda_core.bench.verdict.page import filled
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
PAGES = (ROOT / "docs" / "validation.md", ROOT / "docs" / "error-budget.md")
#: What the pages speak of: cells drawn for it, others drawn when those were known, cells of this project's CPU, cells
#: that were measured before.
NAMES = ("main", "second", "cpu", "earlier")
#: The lists that cells of a validation are of.
LISTS = {"main": SHIPPED, "second": SECOND}


def stored(name: str) -> Path | None:
    """The newest verdict of this name; None where there is none."""
    found = sorted(RESULTS.glob(f"*-validation-{name}.json"))
    return found[-1] if found else None


def verdicts() -> dict[str, Verdict | None]:
    """All verdicts by the name that pages give them."""
    return {name: None if (path := stored(name)) is None else read_verdict(path) for name in NAMES}


def with_the_rest(measured: Run, cells: Path) -> Run:
    """The run with those cells of its list that it has not: they were not measured, and are predicted."""
    known = {record.cell.id for record in measured.records}
    rest = [record for record in read_run(cells).records if record.cell.id not in known]
    return attrs.evolve(measured, records=(*measured.records, *rest))


def told(provenance: Any) -> Any:
    """Where a measurement comes from, without command lines, which name folders of one machine."""
    if not isinstance(provenance, dict):
        return provenance
    return {name: told(value) for name, value in provenance.items() if name != "command"}


def judge(name: str, path: Path, profile: str | None) -> Path:
    """Judge the cells of a path and keep the verdict and its figures; returns the verdict's file."""
    source = run.read_source(path)
    if name in LISTS:
        source = attrs.evolve(source, run=with_the_rest(source.run, LISTS[name]))
    loaded = run.profile_of(source, path, profile)
    verdict = run.make_verdict(source, loaded, asked=profile or loaded)
    verdict = attrs.evolve(verdict, provenance=told(verdict.provenance))
    old = stored(name)
    place = RESULTS / f"{dt.datetime.now(tz=dt.UTC).date()}-validation-{name}.json"
    write_verdict(place, verdict)
    if old is not None and old != place:
        old.unlink()
    plot_scatter(verdict, IMAGES / f"validation-{name}.png")
    plot_models(verdict, IMAGES / f"validation-{name}-models.png")
    if source.folder is not None:
        from sparda_core.bench.verdict.traces import draw_step

        draw_step(IMAGES / f"validation-{name}-step.png", source.folder, source.run.records, profile or loaded)
    return place


def main(argv: list[str] | None = None) -> int:
    """Judge what is named, then fill the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="NAME=PATH", help=f"NAME: {', '.join(NAMES)}")
    parser.add_argument("--profile", metavar="NAME|FILE", help="default: a CPU's own, else h200")
    args = parser.parse_args(argv)
    screen = Console(stderr=True)
    for word in args.cells:
        name, _, path = word.partition("=")
        if name not in NAMES or not path:
            raise ConfigError(f"cells={word!r} must be NAME=PATH, NAME one of {', '.join(NAMES)}")
        screen.print(f"{name}: {judge(name, Path(path), args.profile).name}")
    for page in PAGES:
        write_whole(page, filled(page.read_text(encoding="utf-8"), verdicts()))
        screen.print(f"filled {page.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
