"""A report from stored cells: judge them, write tables, figures and traces. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.decode.store import read_rows
from sparda_core.bench.validate.earlier import earlier_records
from sparda_core.bench.validate.folder import Folder, Run, read_run
from sparda_core.bench.validate.machines import profile_for, profile_name
from sparda_core.bench.validate.record import Record
from sparda_core.bench.verdict.decide import decided
from sparda_core.bench.verdict.judged import Verdict, verdict_csv, write_verdict
from sparda_core.bench.verdict.make import PartsOf, Progress, judge_records
from sparda_core.bench.verdict.parts import RowParts, TimelineParts
from sparda_core.bench.verdict.tables import TABLES
from sparda_core.errors import ConfigError
from sparda_core.files import make_folder, parse_json, read_document, write_whole
from sparda_core.simulator.profile import Profile

VERDICT, CSV = "report.json", "cells.csv"
#: Every record of a validation in one file, beside the folder of records.
DOCUMENT = "validation.json"


@attrs.frozen(kw_only=True)
class Source:
    """Stored cells, what tells their parts, and the folder that their timelines lie in."""

    run: Run
    parts_of: PartsOf | None = None
    folder: Folder | None = None

    @property
    def device(self) -> str:
        """What the cells ran on."""
        return self.run.records[0].cell.device


def read_source(path: Path) -> Source:
    """Cells of a validation (a folder, or its compact document), or of a `decode.json` of `sparda bench decode`.

    Raises RecordingError or ConfigError for a file that is none of these, OSError where it cannot be read.
    """
    if path.is_dir():
        folder, run = Folder(path), _ordered(path)
        return Source(run=run, folder=folder, parts_of=TimelineParts(folder=folder, records=run.records))
    if not _is_decode(path):
        return Source(run=read_run(path))
    document = read_rows(path)
    records = earlier_records(document["rows"])
    # The one figure that a record and its row share to the last bit.
    measured = {row["step_s"]: row for row in document["rows"] if "refused" not in row}
    rows = {record.cell.key: measured[record.measured.step_s] for record in records if record.measured is not None}
    return Source(
        run=Run(records=records, provenance=document.get("provenance", {})), parts_of=RowParts(rows=rows)
    )  # fmt: skip


def _ordered(path: Path) -> Run:
    """A folder's records, in the order of its document and with its provenance where there is one."""
    run, document = read_run(path), path / DOCUMENT
    if not document.exists():
        return run
    told = read_run(document)
    place = {record.cell.id: at for at, record in enumerate(told.records)}
    records = sorted(run.records, key=lambda record: place.get(record.cell.id, len(place)))
    return Run(records=records, provenance=told.provenance)


def _is_decode(path: Path) -> bool:
    try:
        return "rows" in parse_json(read_document(path))
    except (ValueError, TypeError) as wrong:
        raise ConfigError(f"{path} is no JSON of measured cells: {wrong}") from wrong


def profile_of(source: Source, path: Path, name: str | None) -> Profile:
    """The profile to predict with: the one asked for, a CPU validation's own, or the H200's.

    Raises ConfigError for one of another kind of machine than the cells ran on.
    """
    return profile_for(source.device, profile_name(source.device, path, name))


def make_verdict(
    source: Source, profile: Profile, *, asked: str | Profile, progress: Progress = lambda what, done, total: None
) -> Verdict:  # fmt: skip
    """Judge all cells.

    asked  the profile as scenarios take it: its name or file, or `profile` itself
    """
    cells = judge_records(source.run.records, asked, parts_of=source.parts_of, progress=progress)
    return Verdict(
        title=title_of(source.run), device=source.device, cells=cells, decisions=decided(source.run, cells),
        provenance=source.run.provenance,
        profile={"name": profile.name, "digest": profile.digest, "date": profile.date},
    )  # fmt: skip


def title_of(run: Run) -> str:
    """How many cells, where and when."""
    told = run.provenance.get("measured") or run.provenance
    gpu = (told.get("gpu") or {}).get("name")
    machines = dict.fromkeys(_machine(record) for record in run.records)
    date = str(told.get("date", ""))[:10]
    timed = sum(record.measured is not None for record in run.records)
    cells = f"{timed} cells" if timed == len(run.records) else f"{timed} of {len(run.records)} cells"
    words = [cells, gpu or ", ".join(name for name in machines if name), date]
    return ", ".join(word for word in words if word)


def _machine(record: Record) -> str:
    return str(record.identity.get("machine", ""))


def write_report(
    folder: Path, verdict: Verdict, *, source: Source, asked: str | Profile, figures: bool = True
) -> list[Path]:  # fmt: skip
    """The verdict and its cells as JSON and CSV, traces where timelines were measured, and figures.

    asked  as in `make_verdict`
    Returns what was written, the verdict first.
    """
    make_folder(folder)
    written = [folder / VERDICT, folder / CSV]
    write_verdict(written[0], verdict)
    write_whole(written[1], verdict_csv(verdict))
    if source.folder is not None:
        from sparda_core.bench.verdict.traces import write_traces

        written += write_traces(folder, source.folder, source.run.records, asked, figure=figures)
    if figures and verdict.measured:
        from sparda_core.bench.verdict.figures import MODELS, SCATTER, plot_models, plot_scatter

        for name, draw in ((SCATTER, plot_scatter), (MODELS, plot_models)):
            draw(verdict, folder / name)
            written.append(folder / name)
    return written


def plain_tables(verdict: Verdict, names: Sequence[str] = tuple(TABLES)) -> dict[str, Any]:
    """Tables as JSON has them: a list of objects each."""
    made = {name: TABLES[name](verdict) for name in names}
    return {name: [dict(zip(table.head, line, strict=True)) for line in table.lines] for name, table in made.items()}

