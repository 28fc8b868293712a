"""What a calibration of a GPU measured: sections of rows in one JSON file, kept whole after every section."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError, ProfileError
from sparda_core.fields import require
from sparda_core.files import parse_json, read_document, write_whole

Row = dict[str, Any]
#: Version of the file; another one is not read.
VERSION = 1
#: In the order in which they are measured.
SECTIONS = (
    "machine", "launches", "host lists", "copy-engine", "gather", "grids", "products", "beside products", "kernels",
    "sequence", "elasticity", "forked",
)  # fmt: skip
#: Those that a profile is fitted to.
FITTED = tuple(name for name in SECTIONS if name != "forked")


@attrs.frozen(kw_only=True)
class Samples:
    """Rows by section, and where they come from.

    identity    GPU, driver, CUDA, torch, triton: what samples of one file share
    provenance  machine, versions, commit, date and command of the run that measured first
    seconds     how long each section took
    """

    identity: Mapping[str, Any]
    provenance: Mapping[str, Any]
    sections: Mapping[str, Sequence[Row]]
    seconds: Mapping[str, float]

    @property
    def missing(self) -> tuple[str, ...]:
        """Sections that were not measured, in order."""
        return tuple(name for name in SECTIONS if name not in self.sections)

    def require(self, *names: str) -> None:
        """Raise ProfileError naming the sections that are missing."""
        missing = [name for name in names if name not in self.sections]
        if missing:
            raise ProfileError(
                f"samples lack the section{'s' if len(missing) > 1 else ''} {', '.join(missing)}: "
                "`sparda calibrate --device cuda --resume` with the same --out measures what is missing"
            )

    def rows(self, section: str, **want: Any) -> list[Row]:
        """Rows of a section whose fields are as wanted. Raises ProfileError where there is none."""
        self.require(section)
        found = [row for row in self.sections[section] if all(row.get(key) == value for key, value in want.items())]
        if not found:
            told = ", ".join(f"{key}={value!r}" for key, value in want.items())
            raise ProfileError(f"samples: section {section!r} has no row with {told or 'anything'}; measure it again")
        return found

    def one(self, section: str, **want: Any) -> Row:
        """The first such row."""
        return self.rows(section, **want)[0]


class SampleFile:
    """Samples on disk beside a profile: `name.toml` -> `name.samples.json`."""

    def __init__(self, path: Path, identity: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        self.path = path
        self.samples = Samples(identity=identity, provenance=provenance, sections={}, seconds={})

    @property
    def missing(self) -> tuple[str, ...]:
        """Sections to be measured."""
        return self.samples.missing

    def keep(self, name: str, rows: Sequence[Row], *, seconds: float) -> None:
        """Add a section, and write the file anew, whole."""
        self.samples = attrs.evolve(
            self.samples, sections={**self.samples.sections, name: list(rows)},
            seconds={**self.samples.seconds, name: seconds},
        )  # fmt: skip
        write_whole(self.path, samples_json(self.samples))

    def drop(self, names: Sequence[str]) -> None:
        """Forget sections, so that they are measured again; nothing is written before one is."""
        unknown = [name for name in names if name not in SECTIONS]
        if unknown:
            raise ConfigError(f"section {unknown[0]!r} is unknown; known: {', '.join(SECTIONS)}")
        self.samples = attrs.evolve(
            self.samples, sections={k: v for k, v in self.samples.sections.items() if k not in names}
        )


def samples_path(profile: Path) -> Path:
    """Where the samples of a profile lie."""
    return profile.with_name(f"{profile.stem}.samples.json")


def samples_json(samples: Samples) -> str:
    """As kept: a row a line."""
    head = {"version": VERSION, "identity": dict(samples.identity), "provenance": dict(samples.provenance)}
    head["seconds"] = {name: round(value, 2) for name, value in samples.seconds.items()}
    parts = []
    for name in SECTIONS:
        if name in samples.sections:
            rows = ",\n  ".join(json.dumps(_short(row)) for row in samples.sections[name])
            parts.append(f" {json.dumps(name)}: [\n  {rows}\n ]" if rows else f" {json.dumps(name)}: []")
    body = ",\n".join(parts)
    return json.dumps(head, indent=1)[:-2] + ',\n "sections": {\n' + body + "\n }\n}\n"


def _short(value: Any) -> Any:
    """Six digits are more than a clock gives."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value == value and abs(value) != float("inf") else None  # noqa: PLR0124
    if isinstance(value, Mapping):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_samples(path: Path) -> Samples:
    """Samples as they were kept. Raises ConfigError for a file that holds none, or those of another version."""
    try:
        found = parse_json(read_document(path))
        version = found["version"]
        samples = Samples(**{field.name: dict(found[field.name]) for field in attrs.fields(Samples)})
        wrong = [name for name, rows in samples.sections.items() if not _are_rows(rows)]
        require(samples.seconds, "seconds", **dict.fromkeys(samples.seconds, (int, float)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as broken:
        raise ConfigError(f"{path} is damaged ({broken!r}); delete it and calibrate again") from broken
    if version != VERSION:
        raise ConfigError(f"{path} holds samples of version {version!r}; this program reads {VERSION}: measure anew")
    if wrong:
        raise ConfigError(f"{path}: section {wrong[0]!r} is no list of rows; delete the file and calibrate again")
    return samples


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def digest(samples: Samples) -> str:
    """Twelve hex digits of what was measured."""
    return hashlib.sha256(samples_json(samples).encode()).hexdigest()[:12]
