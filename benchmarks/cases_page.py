"""Fill the table of docs/cases.md that says where sparse attention loses: python -m benchmarks.cases_page

Predicted decode steps of the 8B shape on an H200, everything on the device. A test holds the page to them, so that
this is run again when the H200's profile or a price changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sparda_core.files import write_whole
from sparda_core.whatif.scenario import Scenario

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cases.md"
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 131072)
BATCHES = (1, 8)
METHODS = ("dense", "query", "forecast")
_TABLE = re.compile(r"(?<=\| --- \| --- \| --- \| --- \| --- \| --- \|\n)(?:\|.*\|\n)+")


def rows() -> Iterator[tuple[str, ...]]:
    """Rows, context, milliseconds of each method, and the fastest."""
    for batch in BATCHES:
        for context in CONTEXTS:
            steps_s = {
                name: float(Scenario(selector=name, runtime="resident", batch=batch, context=context).predict().step_s)
                for name in METHODS
            }
            fastest = min(METHODS, key=steps_s.__getitem__)
            yield (str(batch), f"{context:,}", *(f"{1e3 * s:.2f}" for s in steps_s.values()), fastest)


def filled(page: str) -> str:
    """The page with the table of today."""
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows())
    return _TABLE.sub(lambda _: lines, page)


def main() -> int:
    """Write the page; returns 0."""
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
