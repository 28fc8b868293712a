"""Runs the lookahead study and publishes it: results, figures, and the tables of docs/lookahead.md. Needs no GPU.

    python -m benchmarks.lookahead --out lookahead              # minutes; again with the same folder, it goes on
    python -m benchmarks.lookahead --out lookahead --publish    # runs nothing: publishes what the folder holds
    python -m benchmarks.lookahead --fill                       # only fills the page, from the results that are kept

The study itself is `sparda whatif --study lookahead --out lookahead`; its rows stay in the folder. A changed profile is
another study: name a fresh folder.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

from sparda_core.bench.lookahead_page import BURSTS, filled
from sparda_core.bench.provenance import provenance
from sparda_core.cli.main import main as sparda
from sparda_core.files import write_whole
from sparda_core.whatif.lookahead import HOST_GB, POOLS, TRACES
from sparda_core.whatif.scenario import Scenario

ROOT = Path(__file__).parents[1]
DATE = "2026-11-30"
RESULTS, IMAGES, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "images", ROOT / "docs" / "lookahead.md"
DATA, POINTS = (RESULTS / f"{DATE}-{name}" for name in ("lookahead.json", "lookahead.csv"))
#: Recorded steps that are played one after the other, to see what bursts of misses do to a gain.
STEPS_PLAYED = 48
FIGURES = ("lookahead", "lookahead-machines", "lookahead-contexts")


def main() -> int:
    """Run or go on, then write results, figures and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="of the study; kept, and gone on with")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--publish", action="store_true", help="run nothing: publish what the folder holds")
    parser.add_argument("--fill", action="store_true", help="run nothing: fill the page from what is kept")
    args = parser.parse_args()
    if args.out is None and not args.fill:
        parser.error("--out DIR is missing: the folder that keeps the study")
    if not args.fill:
        command = ["whatif", "--study", "lookahead", "--out", str(args.out), "--resume", "--jobs", str(args.jobs)]
        if not args.publish and (code := sparda(command)):
            return code
        publish(args.out)
    write_whole(PAGE, filled(PAGE.read_text(), json.loads(DATA.read_text()), steps()))
    print(f"{PAGE} filled")
    return 0


def steps() -> list[dict[str, Any]]:
    """Measured steps: those of the decode page, and of recordings where `sparda bench decode --recording` was kept."""
    runs = [RESULTS / f"{DATE}-decode-h200.json", *sorted(RESULTS.glob("*-decode-recorded-*.json"))]
    return [json.loads(path.read_text()) for path in runs]


def publish(folder: Path) -> None:
    """Study and figures of a folder to where they are kept; points go into a table of their own."""
    study = json.loads((folder / "study.json").read_text())
    points = next(table for table in study["tables"] if table["title"].startswith("Every point"))
    study["tables"].remove(points)
    study["tables"].append({"title": BURSTS, "notes": [], "rows": bursts()})
    where = {**provenance(), "command": "python -m benchmarks.lookahead --out DIR"}
    write_whole(DATA, as_json({"provenance": where, **study}))
    write_whole(POINTS, as_csv(points["rows"]))
    for name in FIGURES:
        write_whole(IMAGES / f"{name}.png", (folder / f"{name}.png").read_bytes())


def bursts() -> list[dict[str, Any]]:
    """Gains on the H200 at 128K tokens from the recorded steps one after the other, beside those of their mean step."""
    rows = []
    for (pool, knobs), batch in itertools.product(POOLS.items(), (1, 4, 16)):
        base = Scenario(recording=TRACES["forecast-16"]["recording"], host_gb=HOST_GB, batch=batch, **knobs)
        mean, played = (_gain(base.turned(steps=steps)) for steps in (None, STEPS_PLAYED))
        rows.append({"pool": pool, "batch": batch, "mean step": mean, "step by step": played})
    return rows


def _gain(ahead: Scenario) -> float:
    return ahead.turned(runtime="offload-sync").predict().step_s / ahead.predict().step_s


def as_json(document: dict[str, Any]) -> str:
    """JSON with a table's row on a line."""
    rest = {name: value for name, value in document.items() if name != "tables"}
    tables = [
        "  {" + f'"title": {json.dumps(table["title"])}, "notes": {json.dumps(table["notes"])}, "rows": [\n'
        + ",\n".join(f"   {json.dumps(row)}" for row in table["rows"]) + "\n  ]}"
        for table in document["tables"]
    ]  # fmt: skip
    return json.dumps(rest, indent=1)[:-2] + ',\n "tables": [\n' + ",\n".join(tables) + "\n ]\n}\n"


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Points with four figures each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(float(f"{value:.4g}") if isinstance(value, float) else value for value in row.values())
    return text.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
