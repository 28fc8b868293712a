"""What a longer lead and a finer grid of entries cost and bring in decode time, predicted. Needs no GPU and no torch.

    python -m benchmarks.leads_and_grids            # prints
    python -m benchmarks.leads_and_grids --json     # also writes benchmarks/results/DATE-leads-and-grids.json
    python -m benchmarks.leads_and_grids --page     # writes that, and fills docs/leads-and-grids.md from it

MiniCPM4.1-8B's shape at 128K tokens on the H200 profile, budget 96 with 34 forced blocks, as in the decode benchmark.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from sparda_core import __version__
from sparda_core.bench.page import fill
from sparda_core.files import check_place, write_whole
from sparda_core.footprint import entry_bytes
from sparda_core.shapes import named_shape
from sparda_core.whatif.scenario import Scenario

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "leads-and-grids.md"
#: How the page names its data.
_NAME = re.compile(r"\d{4}-\d\d-\d\d-leads-and-grids\.json")
BASE = Scenario(context=2**17, batch=16, budget=96, local=32, sink=1)
CHURN = 0.1
LINKS, LEADS = (12.0, 24.0, 36.0, 48.0, 55.0), (1, 2, 4)
#: Layers on the device under every lead, so that leads differ in nothing else; and as many as the lead.
EQUAL = max(LEADS)
GRIDS = ((32, 16), (16, 8), (8, 8), (4, 4), (1, 1))
METHODS = (("forecast", "resident"), ("forecast", "offload-prefetch"), ("query", "offload-sync"))


def main() -> int:
    """Predict, print, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="also write the results file")
    parser.add_argument("--page", action="store_true", help="also write the results file, and fill the page from it")
    args = parser.parse_args()
    place = RESULTS / f"{dt.datetime.now(tz=dt.UTC).date()}-leads-and-grids.json"
    if args.json or args.page:
        check_place(place)
    found = {"leads": leads(), "grids": grids()}
    print(lead_table(found["leads"]))
    print(grid_table(found["grids"]))
    if args.json or args.page:
        write_whole(place, json.dumps(about() | found, indent=1) + "\n")
        for old in set(RESULTS.glob("*-leads-and-grids.json")) - {place}:
            old.unlink()
    if args.page:
        write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8"), found, place.name))
    return 0


def about() -> dict[str, Any]:
    """What the results file says before its rows."""
    return {"version": __version__, "base": attrs.asdict(BASE), "churn": CHURN}


def filled(page: str, found: Mapping[str, Any], name: str) -> str:
    """The page with the tables of results, which the file `name` keeps."""
    tables = {"leads": lead_table, "grids": grid_table}
    return _NAME.sub(name, fill(page, lambda place: tables[place](found[place])))


def leads() -> list[dict[str, Any]]:
    """A row for every link: step time and exposed wait, seconds, under each lead."""
    rows = []
    for link in LINKS:
        row: dict[str, Any] = {"link_gb_s": link}
        for lead in LEADS:
            for name, resident in ((f"lead {lead}", EQUAL), (f"lead {lead}, {lead} resident", lead)):
                got = attrs.evolve(BASE, churn=CHURN, link_gb_s=link, lead=lead, resident_layers=resident).predict()
                row[name] = {"step_s": got.step_s, "exposed_s": got.exposed_s, "moved": got.misses}
        rows.append(row)
    return rows


def grids() -> list[dict[str, Any]]:
    """A row for every grid: bytes of the index of a row of 128K tokens, and step times in seconds."""
    shape, rows = named_shape(BASE.shape), []
    for window, stride in GRIDS:
        asked = attrs.evolve(BASE, churn=CHURN, window=window, stride=stride)
        index = entry_bytes(shape, asked.spec(), [asked.context], 2)
        row: dict[str, Any] = {
            "grid": f"{window}/{stride}", "index_bytes": index,
            "share_of_keys": index / (asked.context * shape.layers * shape.kv_heads * shape.head_dim * 2),
        }  # fmt: skip
        for selector, runtime in METHODS:
            for batch in (1, 16):
                got = attrs.evolve(asked, selector=selector, runtime=runtime, batch=batch).predict()
                row[f"{selector} {runtime} {batch}"] = got.step_s
        rows.append(row)
    return rows


def lead_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds a step, in Markdown."""
    names = [*(f"lead {lead}" for lead in LEADS), *(f"lead {lead}, {lead} resident" for lead in LEADS)]
    lines = [f"| link, GB/s | {' | '.join(names)} |", "|" + " --- |" * (1 + len(names))]
    lines += [
        f"| {row['link_gb_s']:g} | {' | '.join(format(1e3 * row[name]['step_s'], '.2f') for name in names)} |"
        for row in rows
    ]
    return "\n".join(lines)


def grid_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds a step at batch 1 and 16, in Markdown."""
    names = [f"{selector} {runtime}" for selector, runtime in METHODS]
    lines = [f"| entries | index of a row, GB | share of K | {' | '.join(names)} |", "|" + " --- |" * (3 + len(names))]
    for row in rows:
        times = " | ".join(f"{1e3 * row[f'{name} 1']:.2f}, {1e3 * row[f'{name} 16']:.2f}" for name in names)
        lines.append(f"| {row['grid']} | {row['index_bytes'] / 1e9:.3f} | {row['share_of_keys']:.3f} | {times} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
