"""Cells of the decode benchmark: one combination, one load. Torch-free."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec, ModelShape, check_integer, named_shape

#: Context lengths by the names that people use.
K = 1024
COPY_RULES = ("ours", "paper")
LAUNCHES = ("graph", "eager")
COPY_LAUNCHES = ("layer", "step")
HOST_DTYPES = ("same", "fp8")
MAIN, NOSA = "minicpm4.1-8b", "nosa-8b"
#: The shapes measured: 96 blocks of 64 tokens, one sink, and a local band of 2,048 tokens; NOSA-8B's is of 1,024.
SPECS = {MAIN: BlockSpec(sink=1, local=32, budget=96), NOSA: BlockSpec(sink=1, local=16, budget=96)}
EARLY = (0, 1, 2)
ENTRIES = ("32/16", "8/8", "4/4")


@attrs.frozen(kw_only=True)
class Cell:
    """One measurement.

    selector, runtime, engine  registered names
    batch, context  rows, and tokens in each row's cache at the first step
    churn           share of a selection that was not in the last one; without meaning where all is resident
    policy, slots   what the pool keeps, and slots as a multiple of the budget
    host_dtype      "same" as on the device, or "fp8"
    copies          "ours": the profile's CTAs and bytes in flight; "paper": 16 CTAs, 32 from batch 32, 16 KiB each
    launches        "graph": one CUDA graph a step; "eager": every kernel launched by the host
    copy_launch     "layer": a copy kernel for each layer; "step": one that stays for the whole step, in a graph
    lead            layers between selecting and attending, of a Forecast
    entries         grid of compressed keys, window/stride
    early           how early small kernels start, 0, 1 or 2 (kernels/early.py); None: as early as the device can
    shape           sizes of the model, by name
    ctas, in_flight_kib   thread blocks of the copy kernel, and KiB that each keeps in flight; None: as `copies` says
    block           tokens of a block
    """

    selector: str
    runtime: str
    batch: int
    context: int
    churn: float = 0.10
    policy: str = "last-selection"
    slots: float = 1.0
    engine: str = "uva"
    host_dtype: str = "same"
    copies: str = "ours"
    launches: str = "graph"
    copy_launch: str = "layer"
    lead: int = 1
    entries: str = ENTRIES[0]
    early: int | None = None
    shape: str = MAIN
    ctas: int | None = None
    in_flight_kib: int | None = None
    block: int = 64

    def __attrs_post_init__(self) -> None:
        check_integer("batch", self.batch, 1)
        check_integer("context", self.context, 1)
        check_integer("lead", self.lead, 1)
        check_integer("block", self.block, 1)
        for name in ("ctas", "in_flight_kib"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        known_values = (
            ("copies", COPY_RULES), ("launches", LAUNCHES), ("host_dtype", HOST_DTYPES),
            ("copy_launch", COPY_LAUNCHES), ("shape", tuple(SPECS)), ("entries", ENTRIES),
        )  # fmt: skip
        for name, known in known_values:
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown; known: {', '.join(known)}")
        if self.early not in (None, *EARLY):
            raise ConfigError(f"early={self.early!r} must be one of {', '.join(map(str, EARLY))}, or None")
        if not 0 <= self.churn <= 1:
            raise ConfigError(f"churn={self.churn} must be in [0, 1]")
        if not self.slots >= 1:
            raise ConfigError(f"slots={self.slots} must be >= 1, a multiple of the budget")

    @property
    def offloads(self) -> bool:
        """Whether blocks live in host memory."""
        return self.runtime != "resident"

    @property
    def method(self) -> str:
        """Short name of the combination."""
        return f"{self.selector} {self.runtime.removeprefix('offload-')}"

    @property
    def key(self) -> str:
        """One line that names the cell, the same in every process."""
        load = f"b{self.batch} {self.context // K}K" if self.context % K == 0 else f"b{self.batch} {self.context}"
        load += "" if self.shape == MAIN else f" {self.shape}"
        if not self.offloads:
            return f"{self.method} {load}{'' if self.launches == 'graph' else ' eager'}{self._more_words}"
        extras = [
            word
            for word, plain in (
                (self.engine, "uva"), (self.host_dtype, "same"), (f"{self.copies} copies", "ours copies"),
                (self.launches, "graph"), (f"one copy a {self.copy_launch}", "one copy a layer"),
            )
            if word != plain
        ]  # fmt: skip
        words = [f"{self.method} {load} churn {self.churn:.0%} {self.policy} x{self.slots:g}", *extras]
        return " ".join(words) + self._more_words

    @property
    def _more_words(self) -> str:
        words = "" if self.lead == 1 else f" lead {self.lead}"
        words += "" if self.entries == ENTRIES[0] else f" entries {self.entries}"
        words += "" if self.ctas is None else f" {self.ctas} CTAs"
        words += "" if self.in_flight_kib is None else f" of {self.in_flight_kib} KiB"
        words += "" if self.block == 64 else f" blocks of {self.block}"
        return words if self.early is None else f"{words} early {self.early}"

    @property
    def beyond(self) -> bool:
        """Whether it has a lead or a grid that the paper has not: no row to compare others with."""
        return self.lead != 1 or self.entries != ENTRIES[0]

    @property
    def told_apart(self) -> bool:
        """Whether the parts of its step are measured too: at the churn and in the pool that figures are compared at."""
        compared = NOSA_CHURN if self.shape == NOSA else 0.10
        plain = (self.churn, self.policy, self.slots, self.launches) == (compared, "last-selection", 1.0, "graph")
        return plain and self.copies == "ours" and self.engine == "uva"

    @property
    def spec(self) -> BlockSpec:
        """How its rows are cut."""
        window, stride = map(int, self.entries.split("/"))
        return attrs.evolve(SPECS[self.shape], window=window, stride=stride, block=self.block)

    @property
    def model(self) -> ModelShape:
        """Its shape, with positions for 128K tokens (or its own, if more) and the steps after them, which long-context
        scaling allows.
        """
        return attrs.evolve(named_shape(self.shape), context=max(128 * K, self.context) + 1024)

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """The cell of a row; what rows from before there was a choice lack is as it was then."""
        return cls(**{field.name: row[field.name] for field in attrs.fields(cls) if field.name in row})


#: The main shape's cut.
SPEC = SPECS[MAIN]
#: Share of a NOSA selection that is new at a step: its paper's hit rate of 0.944, of a 1B model (localities/nosa.toml).
NOSA_CHURN = 0.056


def main_shape() -> ModelShape:
    """MiniCPM4.1-8B with positions for 128K tokens and the steps after them, which its long-context scaling allows."""
    return attrs.evolve(named_shape(MAIN), context=128 * K + 1024)


_RESIDENT = ("dense", "query", "forecast")
_OFFLOADED = (
    ("query", "offload-sync"), ("infinigen", "offload-prefetch"), ("forecast", "offload-sync"),
    ("forecast", "offload-prefetch"),
)  # fmt: skip
#: What the paper keeps, and ours: twice the budget, least recently selected out first.
POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "last-selection", "slots": 1.0}, {"policy": "lru", "slots": 2.0},
)  # fmt: skip


def headline_cells() -> Iterator[Cell]:
    """What the first claims rest on: 128K tokens, 10 % churn, the paper's pool."""
    for batch in (16, 8, 28, 4, 1):
        yield Cell(selector="forecast", runtime="resident", batch=batch, context=128 * K)
        for selector, runtime in (
            ("query", "offload-sync"), ("forecast", "offload-sync"), ("forecast", "offload-prefetch"),
        ):  # fmt: skip
            yield Cell(selector=selector, runtime=runtime, batch=batch, context=128 * K)


def core_cells() -> list[Cell]:
    """About 90 cells, headline cells first, none twice; those of another model last, since it must be made anew."""
    cells = itertools.chain(
        headline_cells(), _one_copy(), _reference(), _resident(), _bytes(), _policies(), _churns(), _short(),
        _engines(), _beyond(), _nosa(),
    )  # fmt: skip
    return list(dict.fromkeys(cells))


def recorded_cells() -> list[Cell]:
    """What a recording is played in, 16 rows first: without lookahead and with it, 1, 2 and 4 selections of slots."""
    pools: tuple[dict[str, Any], ...] = (*POLICIES, {"policy": "lru", "slots": 4.0})
    return [
        Cell(selector="forecast", runtime=runtime, batch=batch, context=128 * K, **pool)
        for batch, pool, runtime in itertools.product(
            (16, 4, 1, 28), pools, ("offload-sync", "offload-prefetch")
        )
    ]  # fmt: skip


def _one_copy() -> Iterator[Cell]:
    """A copy that stays for the whole step, where copies are what a step waits for."""
    for batch in (16, 28):
        yield Cell(
            selector="forecast", runtime="offload-prefetch", batch=batch, context=128 * K, copy_launch="step"
        )


def _reference() -> Iterator[Cell]:
    """The reference's schedule as a configuration of ours."""
    for batch in (8, 16):
        yield Cell(
            selector="forecast", runtime="offload-prefetch", batch=batch, context=128 * K, copies="paper",
            launches="eager",
        )  # fmt: skip
    yield Cell(selector="query", runtime="resident", batch=4, context=128 * K, launches="eager")


def _resident() -> Iterator[Cell]:
    # The most rows that fit beside the weights on a GPU of 80 GiB.
    yield Cell(selector="forecast", runtime="resident", batch=13, context=128 * K)
    for batch, selector in itertools.product((16, 8, 28, 4, 1), ("query", "dense")):
        yield Cell(selector=selector, runtime="resident", batch=batch, context=128 * K)


def _policies() -> Iterator[Cell]:
    for batch, (selector, runtime) in itertools.product((16, 28, 8), _OFFLOADED):
        yield Cell(selector=selector, runtime=runtime, batch=batch, context=128 * K, **POLICIES[1])
    for batch in (4, 1):
        yield Cell(selector="forecast", runtime="offload-prefetch", batch=batch, context=128 * K, **POLICIES[1])
    for batch in (16, 8):
        yield Cell(selector="infinigen", runtime="offload-prefetch", batch=batch, context=128 * K)


def _churns() -> Iterator[Cell]:
    pairs = (("query", "offload-sync"), ("forecast", "offload-prefetch"))
    for churn, batch, (selector, runtime) in itertools.product((0.03, 0.20), (16, 28), pairs):
        yield Cell(selector=selector, runtime=runtime, batch=batch, context=128 * K, churn=churn)


def _short() -> Iterator[Cell]:
    for batch, context in ((64, 32 * K), (112, 32 * K), (56, 64 * K)):
        for selector, runtime in (("forecast", "resident"), *_OFFLOADED[:1], *_OFFLOADED[2:]):
            if (batch, context, runtime) != (56, 64 * K, "resident"):  # 120 GB of keys and values beside the weights
                yield Cell(selector=selector, runtime=runtime, batch=batch, context=context)


def _engines() -> Iterator[Cell]:
    """Engines whose list the host must read, and InfiniGen as the paper measured it."""
    for selector, engine in (("forecast", "copy-engine"), ("infinigen", "cpu-gather")):
        yield Cell(selector=selector, runtime="offload-prefetch", batch=8, context=128 * K, engine=engine)


def _bytes() -> Iterator[Cell]:
    """What lifts the link's cap: more slots, half the bytes."""
    for slots, dtype in ((4.0, "same"), (1.0, "fp8"), (2.0, "fp8")):
        policy = "last-selection" if slots == 1 else "lru"
        yield Cell(
            selector="forecast", runtime="offload-prefetch", batch=28, context=128 * K, policy=policy, slots=slots,
            host_dtype=dtype,
        )  # fmt: skip


def _beyond() -> Iterator[Cell]:
    """What finer entries cost, and what longer leads buy."""
    for entries, batch in itertools.product(ENTRIES[1:], (16, 1)):
        yield Cell(selector="forecast", runtime="resident", batch=batch, context=128 * K, entries=entries)
    for entries in ENTRIES[1:]:
        yield Cell(selector="forecast", runtime="offload-prefetch", batch=16, context=128 * K, entries=entries)
    for lead in (2, 4):
        yield Cell(selector="forecast", runtime="offload-prefetch", batch=16, context=128 * K, lead=lead)


def _nosa() -> Iterator[Cell]:
    """NOSA-8B, whose query-agnostic blocks stay: the query's own choice fetched when known, and a layer early."""
    pairs = (("nosa", "offload-sync"), ("nosa-forecast", "offload-prefetch"))
    for batch, (selector, runtime) in itertools.product((16, 8), pairs):
        yield Cell(
            selector=selector, runtime=runtime, batch=batch, context=128 * K, churn=NOSA_CHURN, shape=NOSA
        )  # fmt: skip
