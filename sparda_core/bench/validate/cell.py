"""Cells of a validation: one combination under one load, on a GPU or on this machine's CPU. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec, check_integer

K = 1024
DEVICES = ("cuda", "cpu")
LAUNCHES = ("graph", "eager")
#: The cut of the 8B shape's cells, as in `sparda bench decode`; a CPU's cells state theirs.
GPU_SHAPE = "minicpm4.1-8b"
SINK, LOCAL, BUDGET = 1, 32, 96


@attrs.frozen(kw_only=True)
class ValidationCell:
    """What is measured once and predicted.

    device            "cuda", or "cpu": a real model on this machine
    selector, runtime, engine   registered names
    batch, context    rows, and tokens in each row's cache before the first timed step
    churn             share of a selection that is new, of the trace; None: the model's own choice decides (CPU)
    policy, slots     what the pool keeps; slots as a multiple of the budget
    ctas, in_flight_kib   thread blocks of the copy kernel and KiB that each keeps in flight; None: the GPU's default
    lead              layers between selecting and attending
    block, budget, sink, local    how rows are cut; blocks of `block` tokens
    launches          "graph", or "eager": every kernel launched by the host
    background_gb_s   1e9 bytes a second that another stream is asked to take of the link, host to device; 0: none
    link_gb_s         1e9 bytes a second of an emulated link (CPU); None: no limit
    shape             sizes of the model, by name
    Raises ConfigError for values that no cell can have.
    """

    device: str = "cuda"
    selector: str
    runtime: str
    batch: int
    context: int
    churn: float | None = 0.10
    policy: str = "last-selection"
    slots: float = 1.0
    engine: str = "uva"
    ctas: int | None = None
    in_flight_kib: int | None = None
    lead: int = 1
    block: int = 64
    budget: int = BUDGET
    sink: int = SINK
    local: int = LOCAL
    launches: str = "graph"
    background_gb_s: float = 0.0
    link_gb_s: float | None = None
    shape: str = GPU_SHAPE

    def __attrs_post_init__(self) -> None:
        for name in ("batch", "context", "lead", "block", "budget"):
            check_integer(name, getattr(self, name), 1)
        for name, known in (("device", DEVICES), ("launches", LAUNCHES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown; known: {', '.join(known)}")
        for name in ("ctas", "in_flight_kib"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if self.churn is not None and not 0 <= self.churn <= 1:
            raise ConfigError(f"churn={self.churn} must be in [0, 1]")
        if not self.slots >= 1:
            raise ConfigError(f"slots={self.slots} must be >= 1, a multiple of the budget")
        if not self.background_gb_s >= 0:
            raise ConfigError(f"background_gb_s={self.background_gb_s} must be >= 0")

    @property
    def offloads(self) -> bool:
        """Whether blocks live in host memory."""
        return self.runtime != "resident"

    @property
    def pair(self) -> tuple[str, str, str]:
        """Selector, runtime and engine; a resident cell has no engine."""
        return self.selector, self.runtime, self.engine if self.offloads else "-"

    @property
    def method(self) -> str:
        """Short name of selector and runtime."""
        return f"{self.selector} {self.runtime.removeprefix('offload-')}"

    @property
    def load(self) -> str:
        """Short name of rows and context, such as "b16 128K"."""
        return f"b{self.batch} {self.context // K}K" if self.context % K == 0 else f"b{self.batch} {self.context}"

    @property
    def spec(self) -> BlockSpec:
        """How its rows are cut; windows of 32 tokens every 16."""
        return BlockSpec(block=self.block, sink=self.sink, local=self.local, budget=self.budget)

    @property
    def slot_count(self) -> int:
        """Slots per row and KV head of an offloaded layer."""
        return round(self.slots * self.budget)

    @property
    def key(self) -> str:
        """One line that names the cell, the same in every process: what differs from the usual is said."""
        words = [self.method, self.load]
        if self.offloads:
            words += [] if self.churn is None else [f"churn {self.churn:.0%}"]
            words += [f"{self.policy} x{self.slots:g}"]
        copies = (
            (self.engine, self.engine not in ("uva", "thread")),
            (f"{self.ctas} CTAs", self.ctas is not None),
            (f"of {self.in_flight_kib} KiB", self.in_flight_kib is not None),
            (f"beside {self.background_gb_s:g} GB/s", self.background_gb_s > 0),
            (f"link {self.link_gb_s} GB/s", self.link_gb_s is not None),
        )  # fmt: skip
        words += [word for word, said in copies if said and self.offloads]
        rest = (
            (f"lead {self.lead}", self.lead != 1), (f"blocks of {self.block}", self.block != 64),
            (self.launches, self.launches != "graph"), (self.shape, self.shape != GPU_SHAPE),
        )  # fmt: skip
        return " ".join([*words, *(word for word, said in rest if said)])

    @property
    def id(self) -> str:
        """Sixteen hex digits: the name of its files."""
        return hashlib.sha256(json.dumps(self.to_plain(), sort_keys=True).encode()).hexdigest()[:16]

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The cell that `to_plain` was taken of; what it lacks has its default. Raises ConfigError for others."""
        names = {field.name for field in attrs.fields(cls)}
        if strange := sorted(set(plain) - names):
            raise ConfigError(f"a cell has no {', '.join(strange)}; known: {', '.join(sorted(names))}")
        return cls(**plain)
