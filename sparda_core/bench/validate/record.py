"""What is kept of a cell: one JSON file each, measured and predicted side by side. Torch-free.

{"format": 1, "cell": {...}, "tier": "...", "stratum": "...", "ratio": 1.2, "groups": [...], "model": "...",
"measured": {"rounds_s": [[...], ...], "facts": {...}, ...} or null, "refused": "why not" or null,
"predicted": {"replayed": {...}, "drawn": {...}}, "identity": {...}}
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import attrs

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.fields import check_kinds
from sparda_core.files import parse_json, read_document, write_whole

#: Raised by one whenever a reader of older records could misread a newer one.
FORMAT = 1
#: Why a cell is measured.
#:   interpolated  a combination whose whole steps were seen before, between the loads that were seen
#:   combination   selector x runtime x engine that no fit and no decision about the model had seen as a pair
#:   axis          longest contexts, largest batches, numbers of CTAs and slots that had not been seen
#:   sweep         settings of one combination at one load, to choose among
#:   crossover     two combinations along the batch
#:   slope         surrogates for another link: bytes a block, a second stream on the link, engines
#:   earlier       measured before there was a validation
TIERS = ("interpolated", "combination", "axis", "sweep", "crossover", "slope", "earlier")
#: By `ratio`: the time of a step's copies, alone, over that of its compute, alone, as predicted when it was drawn.
STRATA = ("link", "balanced", "compute")
BALANCE = 1.5
#: Ways to predict a record: from its own misses, or from the locality that its trace was drawn from.
REPLAYED, DRAWN = "replayed", "drawn"


def _rounds(value: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(part) for part in value)


def _words(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def stratum_of(ratio: float) -> str:
    """Which side binds: more than BALANCE times the other, or neither."""
    if ratio > BALANCE:
        return "link"
    return "compute" if ratio < 1 / BALANCE else "balanced"


@attrs.frozen(kw_only=True)
class Measured:
    """One measurement. Seconds.

    rounds_s     step times of each round; between two rounds of a cell others ran, where memory has room for them
    facts        of exactly these steps, in order
    confirmed    steps whose counts were read back from the device and were those of `facts`; 0: facts are estimates
    copy_ctas, copy_in_flight_bytes   the copy kernel's size; None where nothing is copied by one
    block_bytes  bytes that one miss moves
    background_bytes_per_s   what the other stream took of the link meanwhile; 0 where there was none
    launch       how steps were launched, in words
    host_s       host time between a step's pieces, where the host must know lists; None where it need not
    timeline     name of the file beside the records that holds spans of other steps; None where none were taken
    timeline_facts  of exactly those steps, in order; None in records of before they were kept
    """

    rounds_s: tuple[tuple[float, ...], ...] = attrs.field(converter=_rounds)
    facts: CompactFacts
    confirmed: int = 0
    copy_ctas: int | None = None
    copy_in_flight_bytes: int | None = None
    block_bytes: float = 0.0
    background_bytes_per_s: float = 0.0
    launch: str = ""
    host_s: float | None = None
    timeline: str | None = None
    timeline_facts: CompactFacts | None = None

    def __attrs_post_init__(self) -> None:
        if not self.rounds_s or not all(self.rounds_s):
            raise RecordingError("a measurement without a step time; every round needs one")

    @property
    def steps_s(self) -> tuple[float, ...]:
        """All step times."""
        return tuple(s for part in self.rounds_s for s in part)

    @property
    def step_s(self) -> float:
        """Median step time."""
        return statistics.median(self.steps_s)

    @property
    def round_medians_s(self) -> tuple[float, ...]:
        """Median step time of each round."""
        return tuple(statistics.median(part) for part in self.rounds_s)

    @property
    def repeatability(self) -> float | None:
        """Largest round median over the smallest, minus one: what the machine itself does not repeat."""
        medians = self.round_medians_s
        return max(medians) / min(medians) - 1 if len(medians) > 1 else None

    @property
    def moved_bytes(self) -> float:
        """Bytes up the link in a mean step."""
        return self.facts.mean_misses * self.block_bytes

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The measurement that `to_plain` was taken of."""
        known = {name: plain.get(name) for name in ("facts", "timeline_facts")}
        facts = {name: told if told is None else CompactFacts(**told) for name, told in known.items()}
        return cls(**{**plain, **facts})


@attrs.frozen(kw_only=True)
class Predicted:
    """One prediction of a cell. Seconds per step; times are None where it has none, and `problem` says why.

    compute_s   the compute lane busy; transfer_s: the h2d lane busy; exposed_s: waits for a transfer
    by_kind     seconds by kind of operation
    spent       seconds of the critical path by launch, select, hbm, compute, pcie
    profile, profile_digest   what it rests on
    """

    step_s: float | None
    transfer_s: float | None = None
    exposed_s: float | None = None
    compute_s: float | None = None
    bound: str | None = None
    by_kind: dict[str, float] = attrs.field(factory=dict)
    spent: dict[str, float] = attrs.field(factory=dict)
    problem: str | None = None
    profile: str = ""
    profile_digest: str = ""


@attrs.frozen(kw_only=True)
class Record:
    """A cell, why it is measured, what was measured and what is predicted.

    ratio      copies alone / compute alone, predicted when it was drawn; None: not told
    groups     names of the decisions that it takes part in
    refused    why it was not measured: it does not fit, or failed; None where it was, or was not tried yet
    failed     whether it failed, so that another run may try again
    predicted  by REPLAYED or DRAWN
    identity   machine, settings, model: what makes two records comparable
    """

    cell: ValidationCell
    tier: str
    stratum: str
    ratio: float | None = None
    groups: tuple[str, ...] = attrs.field(default=(), converter=_words)
    measured: Measured | None = None
    refused: str | None = None
    failed: bool = False
    predicted: dict[str, Predicted] = attrs.field(factory=dict)
    identity: dict[str, Any] = attrs.field(factory=dict)
    format: int = FORMAT

    def __attrs_post_init__(self) -> None:
        for name, known in (("tier", TIERS), ("stratum", STRATA)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown; known: {', '.join(known)}")

    @property
    def tokens_per_s(self) -> float | None:
        """Measured tokens per second over all rows."""
        return None if self.measured is None else self.cell.batch / self.measured.step_s

    def error(self, way: str = DRAWN) -> float | None:
        """Predicted tokens/s over measured, minus one; None where either is missing."""
        told = self.predicted.get(way)
        if self.measured is None or told is None or told.step_s is None:
            return None
        return self.measured.step_s / told.step_s - 1

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The record that `to_plain` was taken of; raises KeyError, TypeError or SpardaError for anything else."""
        if plain["format"] != FORMAT:
            raise RecordingError(f"format={plain['format']!r} must be {FORMAT}")
        measured = plain["measured"]
        parts = {
            "cell": ValidationCell.of(plain["cell"]),
            "measured": None if measured is None else Measured.of(measured),
            "predicted": {way: Predicted(**told) for way, told in plain["predicted"].items()},
        }
        record = cls(**{**plain, **parts})
        check_kinds(record)
        if record.measured is not None:  # what tables ask of it
            _ = record.tokens_per_s, record.error(), record.measured.repeatability, record.measured.moved_bytes
        return record


def write_record(path: Path, record: Record) -> None:
    """Write a record, all or nothing."""
    write_whole(path, json.dumps(record.to_plain()) + "\n")


def read_record(path: Path) -> Record:
    """A record; raises RecordingError for a file that holds none, OSError where it cannot be read."""
    try:
        return Record.of(parse_json(read_document(path)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
        raise RecordingError(f"{path} is no record of a validation ({wrong}); delete it and measure again") from wrong
