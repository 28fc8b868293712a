"""`sparda bench decode`: decode steps of the 8B shape on this machine's GPU, against their floors. Loads torch late."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.bench.decode.bars import bars
from sparda_core.bench.decode.cell import EARLY, Cell, core_cells, recorded_cells
from sparda_core.bench.decode.report import COLUMNS, GAINS, gains, refused_row, row_of, table
from sparda_core.bench.decode.store import Settings, Store, read_rows
from sparda_core.cli.options import SEED, add_json
from sparda_core.cli.parser import number
from sparda_core.cli.running import Report, progress
from sparda_core.cli.screen import cell as cell_text
from sparda_core.cli.screen import plain, show_json, show_table
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.files import check_place
from sparda_core.locks import locked_folder
from sparda_core.trace import write_trace
from sparda_core.whatif.scenario import Scenario

if TYPE_CHECKING:
    from sparda_core.bench.decode.measure import Bench

#: What may be measured.
SUBJECTS = ("decode",)
_SIZE = number(int, least=1)
#: Options that say which cells.
_CELLS = ("only", "most", "most_batch", "early", "recording")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda bench`."""
    parser.add_argument("subject", metavar="SUBJECT", help="what to measure: decode")
    which = parser.add_argument_group("cells (default: about 90, the headline first)")
    which.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="cells whose name holds every one of these words, as b16"
    )
    which.add_argument("--most", type=_SIZE, metavar="CELLS", help="measure no more than the first so many")
    which.add_argument("--most-batch", type=_SIZE, metavar="ROWS", help="leave out larger batches")
    which.add_argument(
        "--early", nargs="+", type=int, choices=EARLY, metavar="0|1|2",
        help="each cell once with small kernels that start when the one before has ended, as it ends, as it runs",
    )  # fmt: skip
    which.add_argument("--list", action="store_true", help="name the cells and measure nothing")
    which.add_argument(
        "--show", type=Path, metavar="FILE", help="show the rows of a decode.json and measure nothing; needs no GPU"
    )
    how = parser.add_argument_group("measuring")
    how.add_argument("--steps", type=number(int, least=64), default=96, metavar="STEPS", help="behind each median")
    how.add_argument("--warmup", type=_SIZE, default=16, metavar="STEPS", help="steps before them")
    how.add_argument("--locality", default="hisparse", metavar="NAME|FILE", help="where the traces' reuse is from")
    how.add_argument(
        "--recording", metavar="NAME|FILE",
        help="play selections of a real run in place of a locality: Forecast cells with 1, 2 and 4 selections of slots",
    )  # fmt: skip
    how.add_argument(
        "--gpu-memory-gib", type=number(float, least=1), metavar="GIB",
        help="cap on device memory, 1024**3 bytes; 80 is what the paper's GPU had (default: all of it)",
    )  # fmt: skip
    how.add_argument("--seed", type=SEED, default=0, help="of traces and weights")
    how.add_argument("--out", type=Path, default=Path("sparda-bench"), metavar="FOLDER", help="rows, CSV and JSON")
    how.add_argument(
        "--timeline", type=Path, metavar="FILE",
        help="also trace some steps of the one cell chosen, with torch's profiler, in steps that are not quoted",
    )  # fmt: skip
    how.add_argument("--resume", action="store_true", help="keep the rows that the folder has of these settings")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the cells asked for; the folder is complete after every cell."""
    if args.subject not in SUBJECTS:
        raise ConfigError(f"subject={args.subject!r} is unknown; known: {', '.join(SUBJECTS)}")
    if args.show is not None:
        refuse_unused(args, add_arguments, ("show",), where="--show")
        document = read_rows(args.show)
        _tell(document, as_json=args.json)
        return 0
    if args.list:
        refuse_unused(args, add_arguments, ("list", *_CELLS), where="--list")
    cells = chosen(args)
    if args.list:
        _list(cells, as_json=args.json)
        return 0
    if args.timeline is not None:
        if len(cells) != 1:
            raise ConfigError(f"--timeline traces one cell, {len(cells)} are chosen; name one with --only and --most")
        check_place(args.timeline)
    from sparda_core.bench.decode.measure import Bench, machine_name

    settings = Settings(
        warmup=args.warmup, steps=args.steps, locality=args.locality, seed=args.seed,
        gpu_memory_gib=args.gpu_memory_gib, recording=args.recording,
    )  # fmt: skip
    store = Store(args.out, settings, machine_name())
    with locked_folder(args.out), progress() as report, Bench(settings, cells, report=report, tell=_note) as bench:
        rows = measure_all(cells, bench, store, resume=args.resume, report=report)
        document = store.finish(rows, bench.provenance())
        if args.timeline is not None:
            write_trace(args.timeline, [bench.timeline(cells[0])])
    _tell(document, as_json=args.json)
    return 1 if any("failed" in row for row in rows) else 0


def _note(line: str) -> None:
    sys.stderr.write(line)  # as it is now: a progress bar that is drawn has put itself in between


def _tell(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(document)
    else:
        show(document["rows"])


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells that the options name; raises ConfigError where none is left."""
    known = core_cells() if args.recording is None else _at_churn_of(args.recording)
    # "b1" is the batch of one, not the beginning of "b16": parts of words count where no cell has the whole word.
    whole = {word for word in args.only if any(word in cell.key.split() for cell in known)}
    cells = [
        cell
        for cell in known
        if all(word in (cell.key.split() if word in whole else cell.key) for word in args.only)
        and (args.most_batch is None or cell.batch <= args.most_batch)
    ][: args.most]
    if not cells:
        raise ConfigError(f"no cell has all of {args.only} in its name; `sparda bench decode --list` shows them")
    return [attrs.evolve(cell, early=early) for cell in cells for early in args.early or (None,)]


def _at_churn_of(recording: str) -> list[Cell]:
    """Cells named by the churn of the recording that they will play."""
    churn = round(Scenario(recording=recording).churn_share(), 4)
    return [attrs.evolve(cell, churn=churn) for cell in recorded_cells()]


def measure_all(
    cells: Sequence[Cell], bench: Bench, store: Store, *, resume: bool, report: Report
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows in the order of the cells; one that does not fit says why."""
    rows = []
    for done, cell in enumerate(cells):
        row = store.read(cell) if resume else None
        if row is None:
            row = _measured(cell, bench)
            if "failed" not in row:
                store.write(cell, row)
        rows.append(row)
        report("cells", done + 1, len(cells))
    return rows


def _measured(cell: Cell, bench: Bench) -> dict[str, Any]:
    """A cell's row; where it cannot be measured, why. A failure does not take the other cells with it."""
    try:
        return row_of(cell, bench.measure(cell), cell.model, cell.spec)
    except CapacityError as wrong:
        return refused_row(cell, str(wrong))
    except Exception as wrong:  # noqa: BLE001 - told in the table and by the exit code, and tried again by --resume
        text = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        return {**refused_row(cell, text), "failed": True}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table, and what follows from it."""
    refused = [f"{row['key']}: {row['refused']}" for row in rows if "refused" in row]
    show_table("Decode steps", COLUMNS, table(rows), notes=refused)
    lines = gains(rows)
    if lines:
        show_table("What overlap and selection gain at the paper's pool, 128K and 10 % churn", GAINS, lines)
    judged = [
        (bar.name, bar.where, bar.figure, ("at least " if bar.least else "at most ") + cell_text(bar.bound), bar.met)
        for bar in bars(rows)
    ]
    if judged:
        show_table("Against what it must reach", ("what", "where", "figure", "bound", "met"), judged)


def _list(cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        show_json(plain([cell.to_plain() for cell in cells]))
    else:
        show_table("Cells", ("cell",), [(cell.key,) for cell in cells])
