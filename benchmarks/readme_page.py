"""Fill what README.md predicts of one H200: python -m benchmarks.readme_page (half a minute; no GPU, no torch)

The steps of five combinations, and whether offloading pays. Tests hold README.md to what is predicted.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparda_core.cli.main import main as sparda
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.whatif.scenario import Scenario

README = Path(__file__).resolve().parents[1] / "README.md"
#: Columns of the table.
METHODS = (
    ("dense", "resident"), ("forecast", "resident"), ("query", "offload-sync"), ("forecast", "offload-sync"),
    ("forecast", "offload-prefetch"),
)  # fmt: skip
#: The first command under "advise" in docs/commands.md.
ADVISE = ("advise", "--context", "131072", "--batch", "32", "--json")
_STEPS = re.compile(r"(?<=\| `forecast` offload-prefetch \|\n  \| --- \| --- \| --- \| --- \| --- \|\n).*")
_PAYS = re.compile(r"(?<=On an H200 barely: ).*?(?= no longer\.)", re.DOTALL)


def steps() -> str:
    """The table's line: milliseconds of 16 rows with 10 % churn, each combination."""
    base = Scenario(batch=16, churn=0.1)
    took_s = [base.turned(selector=selector, runtime=runtime).predict().step_s for selector, runtime in METHODS]
    return f"  | {' | '.join(f'{1e3 * s:.1f} ms' for s in took_s)} |"


def advice() -> dict[str, Any]:
    """What `sparda advise --json` says. Raises ConfigError where it says nothing."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        if sparda(ADVISE):
            raise ConfigError(f"sparda {' '.join(ADVISE)} failed")
    found: dict[str, Any] = json.loads(told.getvalue())
    return found


def pays(found: Mapping[str, Any]) -> str:
    """Of advice: by how much offloading wins, and where it stops to. Raises ConfigError where it does not win."""
    flips = {flip["knob"]: flip["value"] for flip in found["flips"]}
    if not found["offload_pays"] or flips.keys() != {"link_gb_s", "churn"}:
        raise ConfigError("README.md says that offloading barely pays on an H200; it is predicted otherwise: say that")
    rows, fit = found["offload"]["batch"], found["resident"]["batch"]
    return (
        f"{rows} rows with prefetching are {100 * found['margin_over_resident']:.0f} % ahead of the {fit} that fit on "
        f"the device, and from a churn of {flips['churn']:.2f} or below\n  {flips['link_gb_s']:.0f} GB/s"
    )


def filled(page: str, found: Mapping[str, Any]) -> str:
    """README.md with steps of today and this advice. Raises ConfigError where a place is missing."""
    for place, text in ((_STEPS, steps()), (_PAYS, pays(found))):
        page, times = place.subn(text, page)
        if times != 1:
            raise ConfigError(f"README.md has {times} places for {text.strip()!r}; it must have one")
    return page


def main() -> int:
    """Write README.md; returns 0."""
    write_whole(README, filled(README.read_text(encoding="utf-8"), advice()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
