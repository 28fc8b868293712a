"""What a longer lead and a finer grid of entries cost and bring in decode time, predicted. Needs no GPU and no torch.

    python benchmarks/leads_and_grids.py            # prints
    python benchmarks/leads_and_grids.py --json     # also writes benchmarks/results/DATE-leads-and-grids.json

MiniCPM4.1-8B's shape at 128K tokens on the H200 profile, budget 96 with 34 forced blocks, as in the decode benchmark.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from pathlib import Path
from typing import Any

import attrs

from sparda_core import __version__
from sparda_core.files import check_place, write_whole
from sparda_core.footprint import entry_bytes
from sparda_core.shapes import named_shape
from sparda_core.whatif.scenario import Scenario

RESULTS = Path(__file__).parent / "results"
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
    args = parser.parse_args()
    place = RESULTS / f"{dt.datetime.now(tz=dt.UTC).date()}-leads-and-grids.json"
    if args.json:
        check_place(place)
    of_leads, of_grids = leads(), grids()
    print(lead_table(of_leads))
    print(grid_table(of_grids))
    if args.json:
        document = {"version": __version__, "base": attrs.asdict(BASE), "churn": CHURN}
        document |= {"leads": of_leads, "grids": of_grids}
        write_whole(place, json.dumps(document, indent=1) + "\n")
    return 0


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
