"""A cell as it is judged: what was measured, what every model predicts, part by part. Torch-free.

The errors of a report are made of these and of nothing else, so that a report can be made again from its own file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import attrs

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.errors import RecordingError
from sparda_core.fields import check_kinds
from sparda_core.files import csv_text, parse_json, read_document, write_whole
from sparda_core.simulator.step_models import FULL

#: Raised by one whenever a reader of older files could misread a newer one.
FORMAT = 1
#: Tiers that bars speak of, in the order of tables; "replay" is a way to predict, of any cell with facts of its own.
REPLAY = "replay"
#: Strata besides those of a record: cells whose steps the host issues or interrupts, cells with many copy CTAs, and
#: cells of balance whose plan overlaps at all.
HOST, MANY_CTAS, OVERLAPPED = "host in mid-step", "3 or more copy CTAs", "balanced and overlapping"
#: Every stratum, in the order of tables.
ORDER = ("compute", "balanced", OVERLAPPED, "link", MANY_CTAS, HOST)
#: Copy thread blocks from which on a cell counts as one with many.
MANY = 3


@attrs.frozen(kw_only=True)
class Part:
    """A figure of a cell, measured and predicted.

    unit  "s", "B/s", or "1" for a ratio
    """

    name: str
    unit: str
    measured: float
    predicted: float

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus one; None where nothing was measured. Of a ratio, the difference."""
        if self.unit == "1":
            return self.predicted - self.measured
        return self.predicted / self.measured - 1 if self.measured else None


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)


def _parts(parts: Iterable[Any]) -> tuple[Part, ...]:
    return tuple(part if isinstance(part, Part) else Part(**part) for part in parts)


@attrs.frozen(kw_only=True)
class Judged:
    """One cell. Times in seconds of a step.

    key, tier, cell, groups   as in its Record
    stratum        as in its Record; HOST where the host issues or interrupts the step
    overlaps       whether its plan lets compute run beside a transfer
    copy_ctas      thread blocks of its copy kernel; None where there is none
    moved_bytes    bytes up the link in a mean step
    measured_s     median step; None where it was not measured, and `refused` says why
    repeatability  what the machine itself does not repeat, as a share; None where it was measured once
    replayed_s     predicted from the cell's own facts
    drawn_s        predicted from facts that were drawn: the prediction proper
    models         every way to predict by name, from the same facts as `predicted_s`
    parts          figures besides the step's time
    problem        why there is no prediction, or none of its parts; None where all is there
    """

    key: str
    tier: str
    stratum: str
    cell: dict[str, Any]
    groups: tuple[str, ...] = attrs.field(default=(), converter=_names)
    overlaps: bool = False
    copy_ctas: int | None = None
    moved_bytes: float = 0.0
    measured_s: float | None = None
    repeatability: float | None = None
    replayed_s: float | None = None
    drawn_s: float | None = None
    models: dict[str, float] = attrs.field(factory=dict)
    parts: tuple[Part, ...] = attrs.field(default=(), converter=_parts)
    refused: str | None = None
    problem: str | None = None

    @property
    def batch(self) -> int:
        """Rows."""
        return int(self.cell["batch"])

    @property
    def of(self) -> ValidationCell:
        """The cell itself."""
        return ValidationCell.of(self.cell)

    @property
    def predicted_s(self) -> float | None:
        """The prediction that is judged: from drawn facts where they can be drawn, else from its own."""
        return self.replayed_s if self.drawn_s is None else self.drawn_s

    def error(self, model: str = FULL) -> float | None:
        """Predicted tokens/s over measured, minus one; None where either is missing."""
        return self._against(self.predicted_s if model == FULL else self.models.get(model))

    @property
    def replay_error(self) -> float | None:
        """The same of the prediction from the cell's own facts."""
        return self._against(self.replayed_s)

    def _against(self, predicted_s: float | None) -> float | None:
        if self.measured_s is None or not predicted_s:
            return None
        return self.measured_s / predicted_s - 1

    @property
    def strata(self) -> tuple[str, ...]:
        """Every stratum that it belongs to."""
        found = [self.stratum]
        if self.stratum == "balanced" and self.overlaps:
            found.append(OVERLAPPED)
        if self.copy_ctas is not None and self.copy_ctas >= MANY and self.stratum != HOST:
            found.append(MANY_CTAS)
        return tuple(found)

    def rates(self, model: str = FULL) -> tuple[float, float] | None:
        """(measured, predicted) tokens per second; None where either is missing."""
        predicted = self.predicted_s if model == FULL else self.models.get(model)
        if self.measured_s is None or not predicted:
            return None
        return self.batch / self.measured_s, self.batch / predicted


def _rows(rows: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple(rows)


def _cells(cells: Iterable[Judged]) -> tuple[Judged, ...]:
    return tuple(cells)


@attrs.frozen(kw_only=True)
class Verdict:
    """Judged cells, in the order of their records, and where they and the predictions come from.

    title       what was measured where, in a few words
    decisions   what the cells were measured to decide, a row each (bench/validate/decided.py)
    provenance  of the measurement; `profile` of the predictions: its name, digest and date
    """

    title: str
    device: str
    cells: tuple[Judged, ...] = attrs.field(converter=_cells)
    decisions: tuple[dict[str, Any], ...] = attrs.field(default=(), converter=_rows)
    provenance: dict[str, Any] = attrs.field(factory=dict)
    profile: dict[str, str] = attrs.field(factory=dict)

    @property
    def measured(self) -> tuple[Judged, ...]:
        """Cells with a measurement and a prediction."""
        return tuple(cell for cell in self.cells if cell.error() is not None)

    def to_json(self) -> str:
        """A document of one line a cell; `read_verdict` gives an equal verdict back."""
        head = {name: getattr(self, name) for name in ("title", "device", "decisions", "provenance", "profile")}
        lines = ",\n".join(json.dumps(attrs.asdict(cell), allow_nan=False) for cell in self.cells)
        return f'{{"format": {FORMAT},\n"head": {json.dumps(head)},\n"cells": [\n{lines}\n]}}\n'

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The verdict that `to_json` wrote; raises RecordingError for another format."""
        if plain["format"] != FORMAT:
            raise RecordingError(f"format={plain['format']!r} must be {FORMAT}; make the report again")
        verdict = cls(cells=[Judged(**cell) for cell in plain["cells"]], **plain["head"])
        check_kinds(verdict)
        for cell in verdict.cells:  # what tables ask of each
            _ = cell.batch, _told(cell), cell.error(), cell.replay_error, cell.rates(), cell.strata
            _ = [part.error for part in cell.parts]
        return verdict


def write_verdict(path: Path, verdict: Verdict) -> None:
    """Write a verdict, all or nothing."""
    write_whole(path, verdict.to_json())


def read_verdict(path: Path) -> Verdict:
    """A verdict; raises RecordingError for a file that holds none, OSError where it cannot be read."""
    try:
        return Verdict.of(parse_json(read_document(path)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
        raise RecordingError(f"{path} is no report of a validation ({wrong}); make it again") from wrong


def verdict_csv(verdict: Verdict) -> str:
    """One line a cell: what it is, what was measured and predicted, and the error of every model."""
    rows = []
    for cell in verdict.cells:
        models = {name: cell.models.get(name) for name in dict.fromkeys(m for c in verdict.cells for m in c.models)}
        rows.append({
            "key": cell.key, "tier": cell.tier, "stratum": cell.stratum, "overlaps": cell.overlaps,
            "copy_ctas": cell.copy_ctas, "moved_bytes": cell.moved_bytes, **_told(cell),
            "measured_s": cell.measured_s, "repeatability": cell.repeatability, "replayed_s": cell.replayed_s,
            "drawn_s": cell.drawn_s, "error": cell.error(), "replay_error": cell.replay_error,
            **{f"{name}, s": value for name, value in models.items()},
            "refused": cell.refused, "problem": cell.problem,
        })  # fmt: skip
    return csv_text(rows)


def _told(cell: Judged) -> dict[str, Any]:
    names = ("selector", "runtime", "engine", "batch", "context", "churn", "policy", "slots", "lead")
    return {name: cell.cell[name] for name in names}
