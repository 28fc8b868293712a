"""CompareReport: everything a comparison found, as plain rows that can be printed, plotted and kept as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.parts import write_json
from sparda_core.errors import RecordingError
from sparda_core.files import parse_json, read_document

#: Raised by one whenever a reader of older reports could misread a newer one.
FORMAT = 1


@attrs.frozen(kw_only=True)
class CompareReport:
    """Flat rows: times in seconds, sizes in bytes, losses in nats; None where nothing was judged.

    text        name, sha256, opening, tokens, total
    link        the emulated link, and what it was derived from
    quality     one row a contender
    timing      one row a contender, runtime and link
    timelines   exposed wait, slowdown of compute and spans of the leading contender
    gpus        predicted rows of the 8B shape
    refused     pairs that do not fit together, and why
    notes       what was left out, and why
    phases_s    seconds that each phase took
    files       name -> path of what lies beside the report
    """

    config: dict[str, Any]
    provenance: dict[str, Any]
    text: dict[str, Any]
    link: dict[str, Any]
    quality: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    timelines: dict[str, Any]
    gpus: list[dict[str, Any]]
    refused: dict[str, str]
    notes: list[str]
    phases_s: dict[str, float]
    files: dict[str, str]
    format: int = FORMAT

    def save(self, path: Path) -> None:
        """Write as JSON, all or nothing."""
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> CompareReport:
        """Read what `save` wrote; raises RecordingError for anything else."""
        try:
            found = cls(**parse_json(read_document(path)))
            found._check()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as wrong:
            raise RecordingError(f"{path} is not a report of a comparison: {wrong!r}") from wrong
        return found

    def _check(self) -> None:
        """Raise TypeError, ValueError or LookupError for parts that no table or figure could be made of."""
        if self.format != FORMAT:
            raise ValueError(f"format={self.format!r} must be {FORMAT}")
        for field in attrs.fields(type(self)):
            kind, value = str(field.type).partition("[")[0], getattr(self, field.name)
            if type(value).__name__ != kind:
                raise TypeError(f"{field.name} must be a {kind}")
        for name in ("quality", "timing", "gpus"):
            if not all(isinstance(row, dict) for row in getattr(self, name)):
                raise TypeError(f"{name} must hold objects")
        _ = self.hiding  # every pair is found, and has what is told of it

    @property
    def hiding(self) -> list[dict[str, Any]]:
        """For each contender and link: what prefetching hides, from paired runs.

        hidden_share  (sync - prefetch) / (sync - resident)
        """
        names = ("label", "link", "link_bytes_per_s", "hidden_share", "hidden_share_rounds")
        rows = []
        for row in (r for r in self.timing if "hidden_share" in r):
            pair = [r for r in self.timing if (r["label"], r["paired_with"]) == (row["label"], row["paired_with"])]
            rows.append({name: row[name] for name in names} | {f"{r['runtime']}_s": r["step_s"] for r in pair})
        return rows

    def plain(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return attrs.asdict(self)
