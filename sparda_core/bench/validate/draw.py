"""Drawing held-out cells by a seed, stratified by what is predicted of them, before any is measured. Torch-free."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.folder import Run
from sparda_core.bench.validate.machines import profile_for
from sparda_core.bench.validate.pools import FITS, POOLS, axis_of, fits, structured
from sparda_core.bench.validate.predicting import balance_of, drawn_facts, planned_of
from sparda_core.bench.validate.record import STRATA, Record, stratum_of
from sparda_core.errors import ConfigError, SpardaError

#: Held-out tiers: a third of each of these strata at least, of each tier.
HELD_OUT, THIRDS = ("combination", "axis"), ("link", "balanced")
#: Held-out cells with three copy CTAs or more.
MANY_CTAS, LEAST_MANY = 3, 10
#: Cells of a tier.
SIZES = {"combination": 12, "axis": 15, "interpolated": 9}

#: Gives copies alone over compute alone of a cell; None where nothing is predicted of it.
Ratio = Callable[[ValidationCell], float | None]
#: Called with (what, done, total).
Report = Callable[[str, int, int], None]


def draw(
    seed: int, *, profile: str = "h200", sizes: Mapping[str, int] | None = None, ratio: Ratio | None = None,
    without: Collection[ValidationCell] = (), report: Report | None = None,
) -> Run:  # fmt: skip
    """A list of cells: the drawn ones tier by tier, then decisions and surrogates. Seed and profile settle the list.

    ratio    None: by predictions on the profile
    without  cells that are known already, of an earlier list: none of them is in this one
    Raises UnknownNameError for a profile that there is not, and ConfigError for a CPU's and where the pools cannot
    meet the quotas.
    """
    digest = profile_for("cuda", profile).digest
    wanted = SIZES if sizes is None else sizes
    told: dict[ValidationCell, float | None] = {}
    asked = ratio or (lambda cell: predicted_ratio(cell, profile))

    def known(cell: ValidationCell) -> float | None:
        if cell not in told:
            told[cell] = asked(cell)
        return told[cell]

    records: list[Record] = []
    for tier, size in wanted.items():
        records += _tier(tier, size, random.Random(f"{seed} {tier}"), known, without)  # noqa: S311 - a draw that can be repeated
        if report is not None:
            report("cells drawn", len(records), sum(wanted.values()))
    taken = {record.cell for record in records}
    for tier, groups, cell in structured():
        if cell in without:
            continue
        if cell in taken:
            records = [attrs.evolve(one, groups=(*one.groups, *groups)) if one.cell == cell else one for one in records]
            continue
        taken.add(cell)
        found = known(cell) or 0.0
        records.append(Record(cell=cell, tier=tier, stratum=stratum_of(found), ratio=found, groups=groups))
    about = {
        "seed": seed, "profile": profile, "profile_digest": digest, "fits": list(FITS), "without_cells": len(without)
    }  # fmt: skip
    return Run(records=records, provenance={**about, **_quotas(records)})


def predicted_ratio(cell: ValidationCell, profile: str) -> float | None:
    """Copies alone over compute alone, of drawn facts; None where the cell does not fit or has no prediction."""
    if not fits(cell):
        return None
    try:
        planned, facts = planned_of(cell, profile), drawn_facts(cell, profile)
        if not planned.predict(facts).feasible:
            return None
        copies_s, compute_s = balance_of(planned, facts)
    except SpardaError:
        return None
    return copies_s / compute_s


def _tier(
    tier: str, size: int, source: random.Random, ratio: Ratio, without: Collection[ValidationCell]
) -> list[Record]:
    """Cells of a tier in random order, each taken if a place is left for its stratum, its axis and its CTAs."""
    every = sorted(set(POOLS[tier]()).difference(without), key=lambda cell: cell.key)
    source.shuffle(every)
    places = _Places(tier, size)
    for strict in (True, False):  # the bound on each kind gives way where the quotas leave no other cell
        for cell in every:
            if not places.full and places.may_want(cell, strict=strict) and (found := ratio(cell)) is not None:
                places.offer(cell, found)
    if not places.full:
        raise ConfigError(f"tier {tier!r}: only {len(places.taken)} of {size} cells meet its quotas; ask for fewer")
    return [Record(cell=cell, tier=tier, stratum=stratum_of(found), ratio=found) for cell, found in places.taken]


class _Places:
    """Places of one tier. A part of them is kept for each stratum, each axis or combination has a bounded number, and
    so many of a held-out tier have many CTAs.
    """

    def __init__(self, tier: str, size: int) -> None:
        self.taken: list[tuple[ValidationCell, float]] = []
        self._size, self._held_out = size, tier in HELD_OUT
        third = math.ceil(size / 3) if self._held_out else math.ceil(size / 4)
        self._open = {stratum: third if stratum in THIRDS else size - 2 * third for stratum in STRATA}
        self._many = math.ceil(LEAST_MANY * size / sum(SIZES[one] for one in HELD_OUT)) if self._held_out else 0
        self._kind = axis_of if tier == "axis" else _combination
        kinds = 4 if tier == "axis" else 9 if tier == "combination" else 6
        self._each = math.ceil(size / kinds) + self._held_out
        self._kinds: dict[str, int] = {}

    @property
    def full(self) -> bool:
        return len(self.taken) == self._size

    def may_want(self, cell: ValidationCell, *, strict: bool) -> bool:
        """Whether a place is left for it, whatever its stratum: what is cheap to ask comes first."""
        if any(cell == one for one, _ in self.taken):
            return False
        left = self._size - len(self.taken)
        many = self._is_many(cell)
        short = self._many - sum(self._is_many(one) for one, _ in self.taken)
        room = left > short or many
        return room and (not strict or self._kinds.get(self._kind(cell), 0) < self._each)

    def offer(self, cell: ValidationCell, ratio: float) -> None:
        stratum = stratum_of(ratio)
        if not self._open[stratum]:
            return
        self._open[stratum] -= 1
        self._kinds[self._kind(cell)] = self._kinds.get(self._kind(cell), 0) + 1
        self.taken.append((cell, ratio))

    def _is_many(self, cell: ValidationCell) -> bool:
        return cell.offloads and cell.ctas is not None and cell.ctas >= MANY_CTAS


def _combination(cell: ValidationCell) -> str:
    return " ".join(cell.pair)


def _quotas(records: Iterable[Record]) -> dict[str, Any]:
    """What the draw holds, for whoever reads the list."""
    held: Sequence[Record] = [record for record in records if record.tier in HELD_OUT]
    many = sum((record.cell.ctas or 0) >= MANY_CTAS for record in held)
    return {
        "held_out": len(held), **{f"held_out_{name}": sum(r.stratum == name for r in held) for name in STRATA},
        "held_out_with_many_ctas": many,
    }  # fmt: skip
