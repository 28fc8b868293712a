"""Cells that may be drawn, and those that are measured whatever is drawn. Torch-free.

What has been seen of whole steps before is stated here, because held-out means: not seen by any fit and by no decision
about the model either. The numbers of a profile are fitted to parts alone (docs/profiles.md), but whole steps of these
combinations and loads were looked at while the simulator was made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from sparda_core.bench.validate.cell import BUDGET, K, ValidationCell
from sparda_core.shapes import named_shape

#: (selector, runtime, engine) of whole steps that were measured and compared before (docs/decode.md).
SEEN_COMBINATIONS = frozenset({
    ("dense", "resident", "-"), ("query", "resident", "-"), ("forecast", "resident", "-"),
    ("query", "offload-sync", "uva"), ("forecast", "offload-sync", "uva"), ("forecast", "offload-prefetch", "uva"),
    ("infinigen", "offload-prefetch", "uva"), ("forecast", "offload-prefetch", "copy-engine"),
    ("infinigen", "offload-prefetch", "cpu-gather"),
})  # fmt: skip
#: Loads and settings of those steps.
SEEN_MOST_CONTEXT, SEEN_MOST_BATCH = 128 * K, 112
SEEN_CTAS, SEEN_SLOTS = frozenset({None, 2}), frozenset({1.0, 2.0, 4.0})
#: What was used in any fit, and why it is no leak; kept with the list of cells.
FITS = (
    "profile h200: copies alone and beside products, kernels one by one, launch gaps: parts of a step, no whole step",
    "copies have the rates of those which were there before a kernel: decided knowing the steps of docs/decode.md",
    "least times of small kernels: each kernel's own benchmark, at 1 and 16 rows of 128K tokens",
    "rounds of attention, products by rows, choices, copies beside attention, lists: looked for by cells of seed 2026",
)
#: Most pinned memory that all cells share: it takes 0.4 s a GiB to pin.
MOST_HOST_BYTES = 66 << 30
#: And of one cell on the device, weights included.
MOST_DEVICE_BYTES = 125 << 30
#: Steps after a cell's first whose blocks need room.
ROOM = 256

INTERPOLATED_LOADS = ((2, 128 * K), (6, 128 * K), (12, 96 * K), (12, 128 * K), (20, 64 * K), (24, 64 * K), (40, 32 * K))
COMBINATION_LOADS = ((4, 128 * K), (8, 128 * K), (16, 64 * K), (16, 128 * K), (24, 64 * K), (48, 32 * K))
LONG_LOADS = ((2, 256 * K), (4, 256 * K), (8, 256 * K), (10, 192 * K))
LARGE_LOADS = ((128, 16 * K), (160, 12 * K), (192, 10 * K), (256, 8 * K))
OTHER_LOADS = ((8, 128 * K), (16, 128 * K), (24, 64 * K), (48, 32 * K))
NEW_CTAS, NEW_SLOTS = (1, 3, 4, 6, 8, 12, 16), (1.25, 1.5, 3.0)
COMBINATIONS = (
    ("infinigen", "resident", "uva"), ("infinigen", "offload-sync", "uva"), ("random", "offload-prefetch", "uva"),
    ("random", "offload-sync", "uva"), ("query", "offload-sync", "copy-engine"),
    ("forecast", "offload-sync", "copy-engine"), ("infinigen", "offload-prefetch", "copy-engine"),
    ("forecast", "offload-prefetch", "cpu-gather"), ("query", "offload-sync", "cpu-gather"),
)  # fmt: skip
#: What loads and settings are varied of.
KNOWN = (
    ("query", "offload-sync"), ("forecast", "offload-sync"), ("forecast", "offload-prefetch"),
    ("infinigen", "offload-prefetch"),
)  # fmt: skip
#: Prefetching into the paper's pool, and waiting for what twice the slots still miss.
CROSSING = (("offload-prefetch", 1.0), ("offload-sync", 2.0))


def policy_for(slots: float) -> str:
    """What is kept in a pool of so many slots: at one selection's worth both policies are the same."""
    return "last-selection" if slots == 1 else "lru"


def _cell(selector: str, runtime: str, load: tuple[int, int], *, slots: float = 1.0, **more: Any) -> ValidationCell:
    return ValidationCell(
        selector=selector, runtime=runtime, batch=load[0], context=load[1], slots=slots, policy=policy_for(slots),
        **more,
    )  # fmt: skip


def interpolated() -> Iterator[ValidationCell]:
    """Known combinations between the loads and churns that were seen."""
    for selector, load in itertools.product(("forecast", "query"), INTERPOLATED_LOADS):
        yield _cell(selector, "resident", load)
    settings = itertools.product(KNOWN, INTERPOLATED_LOADS, (0.05, 0.10, 0.15), (1.0, 2.0))
    for (selector, runtime), load, churn, slots in settings:
        yield _cell(selector, runtime, load, churn=churn, slots=slots)


def combination() -> Iterator[ValidationCell]:
    """Combinations of which no whole step was seen."""
    settings = itertools.product(COMBINATIONS, COMBINATION_LOADS, (0.05, 0.10, 0.20), (1.0, 2.0), (None, 3, 4, 8))
    for (selector, runtime, engine), load, churn, slots, ctas in settings:
        resident, usual = runtime == "resident", (churn, slots, ctas) == (0.10, 1.0, None)
        if (resident and not usual) or (ctas is not None and engine != "uva"):
            continue
        yield _cell(selector, runtime, load, churn=churn, slots=slots, engine=engine, ctas=ctas)


def axis() -> Iterator[ValidationCell]:
    """Known combinations at contexts, batches, CTAs and slots beyond or between those that were seen."""
    far = itertools.product(KNOWN, (*LONG_LOADS, *LARGE_LOADS), (0.05, 0.10, 0.20), (1.0, 2.0))
    for (selector, runtime), load, churn, slots in far:
        yield _cell(selector, runtime, load, churn=churn, slots=slots)
    for (selector, runtime), load, churn, ctas in itertools.product(KNOWN, OTHER_LOADS, (0.05, 0.10, 0.20), NEW_CTAS):
        yield _cell(selector, runtime, load, churn=churn, ctas=ctas)
    for (selector, runtime), load, churn, slots in itertools.product(KNOWN, OTHER_LOADS, (0.10, 0.20), NEW_SLOTS):
        yield _cell(selector, runtime, load, churn=churn, slots=slots)


def axis_of(cell: ValidationCell) -> str:
    """Which axis of a cell lies outside of what was seen."""
    if cell.context > SEEN_MOST_CONTEXT:
        return "context"
    if cell.batch > SEEN_MOST_BATCH:
        return "batch"
    return "ctas" if cell.ctas not in SEEN_CTAS else "slots"


def fits(cell: ValidationCell) -> bool:
    """Whether its host store (every layer counted) and its device memory stay within what all cells share."""
    shape = named_shape(cell.shape)
    row = cell.spec.block_count(cell.context + ROOM) * 2 * cell.block * shape.head_dim * 2
    every = cell.batch * shape.layers * shape.kv_heads
    entries = every * cell.spec.entry_count(cell.context) * shape.head_dim * 2
    weights = 2 * shape.weights
    if not cell.offloads:
        return every * row + entries + weights <= MOST_DEVICE_BYTES
    slots = every * cell.slot_count * 2 * cell.block * shape.head_dim * 2
    proxy = every * cell.context * shape.head_dim // 2 * 2 if cell.selector == "infinigen" else 0
    free = cell.spec.block_count(cell.context) - BUDGET >= round((cell.churn or 0) * BUDGET)
    return every * row <= MOST_HOST_BYTES and slots + entries + proxy + weights <= MOST_DEVICE_BYTES and free


POOLS = {"combination": combination, "axis": axis, "interpolated": interpolated}


def structured() -> Iterator[tuple[str, tuple[str, ...], ValidationCell]]:
    """(tier, groups, cell) of what is measured whatever is drawn: decisions and surrogates for another link."""
    yield from _copies()
    yield from _compared()
    yield from _crossover()
    yield from _slopes()


def _copies() -> Iterator[tuple[str, tuple[str, ...], ValidationCell]]:
    """Engine and CTAs to choose among, where copies are about what a step waits for; the cheapest first."""
    usual = _cell("forecast", "offload-prefetch", (24, 64 * K))
    for ctas in (1, None, 3, 4, 8, 16):  # None: two, on an H200
        yield "sweep", ("copies b24 64K",), attrs.evolve(usual, ctas=ctas)
    for engine in ("copy-engine", "cpu-gather"):
        yield "sweep", ("copies b24 64K", "engines"), attrs.evolve(usual, engine=engine)


def _compared() -> Iterator[tuple[str, tuple[str, ...], ValidationCell]]:
    """Combinations at one load."""
    group = ("combinations b24 64K",)
    for selector, runtime, slots in (
        ("query", "resident", 1.0), ("forecast", "resident", 1.0), ("query", "offload-sync", 1.0),
        ("forecast", "offload-sync", 2.0), ("infinigen", "offload-prefetch", 2.0),
        ("forecast", "offload-prefetch", 2.0), ("forecast", "offload-prefetch", 1.0),
    ):  # fmt: skip
        crosses = selector == "forecast" and (runtime, slots) in CROSSING
        groups = (*group, "crossover 64K") if crosses else group
        yield "sweep", groups, _cell(selector, runtime, (24, 64 * K), slots=slots)


def _crossover() -> Iterator[tuple[str, tuple[str, ...], ValidationCell]]:
    """Prefetching into the paper's pool against waiting for twice the slots, along the batch."""
    for batch in (20, 28, 32):
        for runtime, slots in CROSSING:
            yield "crossover", ("crossover 64K",), _cell("forecast", runtime, (batch, 64 * K), slots=slots)


def _slopes() -> Iterator[tuple[str, tuple[str, ...], ValidationCell]]:
    """More bytes a block, and a second stream that takes a known share of the link."""
    usual = _cell("forecast", "offload-prefetch", (16, 64 * K))
    for share in (0.0, 10.0, 20.0):
        yield "slope", ("slope background",), attrs.evolve(usual, background_gb_s=share)
    for block, load in ((64, (8, 128 * K)), (128, (8, 128 * K)), (256, (8, 128 * K))):
        yield "slope", ("slope block",), attrs.evolve(usual, block=block, batch=load[0], context=load[1])
