"""`sparda validate`: cells drawn by a seed, measured and predicted. Torch is loaded when something is measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.cli.options import SEED
from sparda_core.cli.parser import number
from sparda_core.cli.running import progress
from sparda_core.cli.screen import show_json
from sparda_core.cli.validate_tables import line_of, show_list, show_run
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.files import check_place, csv_text, write_whole
from sparda_core.locks import locked_folder

if TYPE_CHECKING:
    from sparda_core.bench.validate.folder import Run
    from sparda_core.bench.validate.record import Record

#: Where records go unless told otherwise.
FOLDER = Path("sparda-validation")
#: Stand for the lists that come with the package, in place of a file: the first, and one drawn when that was known.
SHIPPED, SECOND = "shipped", "second"
#: The document with every record, beside them.
DOCUMENT = "validation.json"
#: Share of the cores that other programs may keep busy before it is said.
BUSY_SHARE = 0.25
#: Timed steps of a round on a CPU.
CPU_STEPS = 8
_SIZE = number(int, least=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of drawing, measuring and predicting cells."""
    what = parser.add_argument_group("what is done (default: measure the cells listed, and predict them)")
    what.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where cells are measured")
    what.add_argument("--draw", type=SEED, metavar="SEED", help="draw a list of cells into --out; needs no GPU")
    what.add_argument(
        "--without", nargs="+", type=Path, default=[], metavar="FILE",
        help="with --draw: leave out the cells of these lists (files, or 'shipped' and 'second', which come along)",
    )
    what.add_argument("--list", action="store_true", help="name the cells and measure nothing")
    what.add_argument("--predict-only", action="store_true", help="predict the records of --out anew, measure nothing")
    what.add_argument("--measure-only", action="store_true", help="predict nothing: another machine may do that")
    what.add_argument(
        "--replay-steps", type=_SIZE, default=24, metavar="STEPS", help="of the timed ones, evenly spread, are replayed"
    )
    cells = parser.add_argument_group("cells of a GPU")
    cells.add_argument(
        "--cells", type=Path, metavar="FILE",
        help="a list that --draw wrote, or 'second', which comes along (default: 'shipped')",
    )  # fmt: skip
    cells.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="cells with each of these words in name, tier or group"
    )
    cells.add_argument("--most", type=_SIZE, metavar="CELLS", help="no more than the first so many")
    how = parser.add_argument_group("measuring")
    how.add_argument("--rounds", type=_SIZE, default=3, metavar="N", help="interleaved rounds of each cell")
    how.add_argument("--round-steps", type=_SIZE, default=32, metavar="STEPS", help="timed steps of a round (GPU)")
    how.add_argument(
        "--timelines", nargs="+", default=[], metavar="CELL", help="also trace some steps of these cells, by name (GPU)"
    )  # fmt: skip
    how.add_argument("--limit-s", type=number(float, least=1), metavar="S", help="begin no cell after so many seconds")
    how.add_argument("--model", default="smollm2", metavar="NAME|PATH", help="of --device cpu; 'tiny': random weights")
    how.add_argument("--max-tokens", type=number(int, least=512), default=2048, metavar="TOKENS", help="read by it")
    how.add_argument("--threads", type=_SIZE, metavar="CORES", help="of its compute lane (default: all but one)")
    how.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True,
        help="keep what the folder has of these settings",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Draw, list, measure or predict, then show what there is."""
    if args.csv is not None:
        check_place(args.csv)
    if args.draw is not None:
        return _draw(args)
    folder = args.out or FOLDER
    if args.list:
        show_list(listed(args), as_json=args.json)
        return 0
    if args.predict_only and not folder.is_dir():
        raise ConfigError(f"out={str(folder)!r} is no folder of records; measure cells into it first, or name another")
    with locked_folder(folder):
        found = _found(args, folder)
    _leave(args, folder, found, notes=_busy(args))
    return 1 if any(record.failed for record in found.records) else 0


def _found(args: argparse.Namespace, folder: Path) -> Run:
    """Measure and predict, or one of the two; the document that the folder then has."""
    told = _told(folder)
    if args.predict_only:
        records = _kept(folder)
    else:
        if args.profile is not None:  # said now, and not after minutes of measuring
            _profile_for(args.device, args, folder)
        records = _measured(args, folder, told)
    if not args.measure_only:
        records = _predicted(args, folder, records)
        told["predicted"] = _here()
    return _document(folder, records, told)


def _draw(args: argparse.Namespace) -> int:
    from sparda_core.bench.validate.draw import draw
    from sparda_core.bench.validate.folder import write_run
    from sparda_core.bench.validate.machines import GPU_PROFILE

    if args.out is None:
        raise ConfigError("--draw needs --out FILE, the list to write")
    check_place(args.out)
    with progress() as report:
        without = {record.cell for path in args.without for record in _list_of(path).records}
        drawn = draw(args.draw, profile=args.profile or GPU_PROFILE, without=without, report=report)
    write_run(args.out, drawn)
    show_list(drawn, as_json=args.json)
    return 0


def listed(args: argparse.Namespace) -> Run:
    """The cells that the options name; raises ConfigError where none is left."""
    every = _list_of(args.cells or Path(SHIPPED))
    chosen = [
        record for record in every.records
        if all(any(word in text for text in (record.cell.key, record.tier, *record.groups)) for word in args.only)
    ][: args.most]  # fmt: skip
    if not chosen:
        raise ConfigError(f"no cell has all of {args.only} in its name, tier or groups; --list shows them")
    return attrs.evolve(every, records=chosen)


def _list_of(path: Path) -> Run:
    """A list of cells by its file, or by SHIPPED or SECOND."""
    from sparda_core.bench.validate import folder

    return folder.read_run({SHIPPED: folder.SHIPPED, SECOND: folder.SECOND}.get(str(path), path))


def _kept(folder: Path) -> Sequence[Record]:
    """Records of a folder in the order of its document, or by name."""
    from sparda_core.bench.validate.folder import RECORDS, Folder, read_run

    document = folder / DOCUMENT
    if not document.exists():
        return read_run(folder).records
    if not (folder / RECORDS).is_dir():
        return read_run(document).records
    # The document knows the order, the files are newer.
    return [Folder(folder).read(record.cell) or record for record in read_run(document).records]


def _measured(args: argparse.Namespace, folder: Path, told: dict[str, Any]) -> Sequence[Record]:
    """Measure; `told` gets what the folder's document says of that."""
    with progress() as report:
        if args.device == "cpu":
            from sparda_core.bench.validate.measure_cpu import CpuRun, CpuSettings

            settings = CpuSettings(
                model=args.model, tokens=args.max_tokens, rounds=args.rounds, steps=CPU_STEPS * args.rounds,
                threads=args.threads,
            )  # fmt: skip
            records = CpuRun(settings, folder, report=report, resume=args.resume).run()
            told["measured"] = _here()
            return records
        from sparda_core.bench.validate.measure_gpu import GpuRun, GpuSettings

        chosen = listed(args)
        _check_timelines(args.timelines, chosen)
        gpu = GpuSettings(
            rounds=args.rounds, round_steps=args.round_steps, timelines=tuple(args.timelines), limit_s=args.limit_s
        )
        run = GpuRun(chosen.records, gpu, folder, report=report, tell=sys.stderr.write, resume=args.resume)
        # Of a run that is cut the cells are kept: where they come from must be, too.
        told |= {"measured": _here(), "cells": chosen.provenance}
        _document(folder, run.so_far, told)
        return run.run()


def _check_timelines(names: Sequence[str], chosen: Run) -> None:
    """Raise UnknownNameError for a cell that will not be measured."""
    known = {record.cell.key for record in chosen.records}
    for name in names:
        if name not in known:
            raise UnknownNameError(what="timelines", name=name, known=known)


def _predicted(args: argparse.Namespace, folder: Path, records: Sequence[Record]) -> Sequence[Record]:
    """The records, predicted anew and kept."""
    from sparda_core.bench.validate.folder import Folder
    from sparda_core.bench.validate.predicting import predict_record

    # All of them first: a profile that cannot be read must leave every record as it is.
    names = {device: _profile_for(device, args, folder) for device in {record.cell.device for record in records}}
    kept, made = Folder(folder), []
    with progress() as report:
        for done, record in enumerate(records):
            predicted = predict_record(record, names[record.cell.device], steps=args.replay_steps)
            if predicted.measured is not None:
                kept.write(predicted)
            made.append(predicted)
            report("predicted", done + 1, len(records))
    return made


def _profile_for(device: str, args: argparse.Namespace, folder: Path) -> str:
    """The profile's name or file; raises SpardaError for one that is not there or of another kind of machine."""
    from sparda_core.bench.validate.machines import profile_for, profile_name

    name = profile_name(device, folder, args.profile)
    profile_for(device, name)
    return name


def _here() -> dict[str, Any]:
    """Machine, versions, commit, date, command; and the GPU, where one was at work."""
    from sparda_core.bench.provenance import provenance

    if "torch" not in sys.modules:
        return provenance()
    from sparda_core.bench.gpu_machine import gpu

    return {**provenance(), "gpu": gpu()}


def _told(folder: Path) -> dict[str, Any]:
    """Provenance that the folder's document has: what is done now replaces its own part of it."""
    from sparda_core.bench.validate.folder import read_run

    document = folder / DOCUMENT
    return dict(read_run(document).provenance) if document.exists() else {}


def _document(folder: Path, records: Sequence[Record], told: dict[str, Any]) -> Run:
    """All records in one file."""
    from sparda_core.bench.validate.folder import Run, write_run

    found = Run(records=records, provenance=told)
    write_run(folder / DOCUMENT, found)
    return found


def _busy(args: argparse.Namespace) -> list[str]:
    """That other programs are in the figures, where a CPU was measured and they kept it busy."""
    if args.device != "cpu" or args.predict_only:
        return []
    from sparda_core.bench.provenance import busy_cores, machine

    busy, cores = busy_cores(), machine()["cores"]
    if busy is None or busy <= BUSY_SHARE * cores:
        return []
    return [f"Other programs keep {busy:.1f} of {cores} cores busy; steps and profile may not match."]


def _leave(args: argparse.Namespace, folder: Path, found: Run, *, notes: Sequence[str]) -> None:
    """Show the tables, or the document, and write the CSV."""
    from sparda_core.bench.validate.decided import decisions
    from sparda_core.bench.validate.summary import errors

    lines = [line_of(record) for record in found.records]
    if args.csv is not None:
        write_whole(args.csv, csv_text(lines))
    if args.json:
        show_json({
            "provenance": found.provenance, "cells": lines, "errors": errors(found.records),
            "decisions": decisions(found),
        })  # fmt: skip
        return
    show_run(lines, errors(found.records), decisions(found), [f"Records: {folder}", *notes])
