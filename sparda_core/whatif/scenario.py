"""Scenario: one point of a study. Every field is a knob, under the name that the command line gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs

from sparda_core.compose import Combination
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.policy import LAST_SELECTION
from sparda_core.shapes import SHAPES, BlockSpec
from sparda_core.whatif.knobs import MOST_STEPS, Knob, knob, knob_of

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction
    from sparda_core.simulator.profile import Profile

#: Share of a selection that was not in the one before, where neither `churn` nor `locality` is given.
CHURN = 0.03
LOAD, MACHINE, BLOCKS, METHOD, COPIES = "load", "machine", "blocks and entries", "method", "how blocks move"


@attrs.frozen(kw_only=True)
class Scenario:
    """A combination, a machine and a load. What each knob means, its unit and its bounds: `Scenario.knobs()`.

    Numbers are checked when a scenario is made, names and how they fit together when it is predicted.
    Raises ConfigError, and UnknownNameError with the nearest known name.
    """

    shape: str = knob(
        "minicpm4.1-8b", str, f"model sizes: {', '.join(SHAPES)}", metavar="NAME", group=LOAD
    )
    phase: str = knob(
        "decode", str, "what is predicted: one step of all rows, or reading a prompt", metavar="NAME", group=LOAD,
        choices=("decode", "prefill"),
    )  # fmt: skip
    batch: int = knob(
        8, int, "sequences decoded together on each GPU (prefill reads one after another)", metavar="ROWS", group=LOAD,
        least=1,
    )  # fmt: skip
    context: int = knob(
        131072, int, "tokens in each row's cache (prefill: of the prompt)", metavar="TOKENS", group=LOAD, least=1
    )
    chunk: int = knob(2048, int, "prefill: tokens read at a time", metavar="TOKENS", group=LOAD, least=1)
    prefill: str = knob(
        "dense", str, "prefill: every query attends to all before it, or to its own selection", metavar="MODE",
        group=LOAD, choices=("dense", "selector"),
    )  # fmt: skip
    churn: float | None = knob(
        None, float,
        f"share of a selection that was not in the row's previous one (default: the locality's, else {CHURN})",
        metavar="SHARE", group=LOAD, most=1,
    )  # fmt: skip
    locality: str | None = knob(
        None, str, "how blocks come back, by name or file: misses then follow from slots and policy "
        "(default: every newcomer is a miss)", metavar="NAME|FILE", group=LOAD,
    )  # fmt: skip
    recording: str | None = knob(
        None, str, "selections of a real run, by name or file, in place of a locality: a step misses the share of its "
        "blocks that the run would have missed with as many selections of slots", metavar="NAME|FILE", group=LOAD,
    )  # fmt: skip
    steps: int | None = knob(
        None, int, "decode steps predicted, one after another (default: one, of mean misses)", metavar="STEPS",
        group=LOAD, least=1, most=MOST_STEPS,
    )  # fmt: skip
    seed: int = knob(0, int, "of the locality's draws", metavar="SEED", group=LOAD)
    value_bytes: float | None = knob(
        None, float, "bytes of a weight, a key and a value (default: 2 on a GPU, 4 on a CPU)", metavar="BYTES",
        group=LOAD, least=0.5, most=8,
    )  # fmt: skip

    profile: str = knob("h200", str, "the machine; see `sparda profile list`", metavar="NAME|FILE", group=MACHINE)
    gpus: int = knob(
        1, int, "GPUs that share the host's memory, each with a batch of its own", metavar="N", group=MACHINE,
        least=1, most=64,
    )  # fmt: skip
    pcie: int | None = knob(
        None, int, "another PCIe generation for the host link (default: the profile's)", metavar="GEN",
        group=MACHINE, least=3, most=6,
    )  # fmt: skip
    link_gb_s: float | None = knob(
        None, float, "another speed of the host link, 1e9 bytes a second (default: the profile's or the generation's)",
        metavar="GB/S", group=MACHINE, least=1e-6, most=1e4,
    )  # fmt: skip
    hbm_gb_s: float | None = knob(
        None, float, "another speed of device memory, 1e9 bytes a second (default: the profile's)", metavar="GB/S",
        group=MACHINE, least=1e-3, most=1e6,
    )  # fmt: skip
    tflop_s: float | None = knob(
        None, float, "another rate of dense products, 1e12 operations a second (default: the profile's)",
        metavar="TFLOP/S", group=MACHINE, least=1e-6, most=1e6,
    )  # fmt: skip
    host_gb: float | None = knob(
        None, float, "another size of host memory, 1e9 bytes (default: the profile's)", metavar="GB", group=MACHINE,
        least=0.1, most=1e6,
    )  # fmt: skip
    launches: str | None = knob(
        None, str, "one graph a step, host launches, or graphs cut at each copy (default: what the engine allows)",
        metavar="NAME", group=MACHINE, choices=("graph", "eager", "segments"),
    )  # fmt: skip
    extrapolate: bool = knob(
        False, bool, "accept points outside what the profile's numbers were measured for, and mark them",
        group=MACHINE,
    )  # fmt: skip

    selector: str = knob("forecast", str, "which blocks; see `sparda methods`", metavar="NAME")
    selector_options: tuple[tuple[str, Any], ...] = knob(
        (), dict, "an option of the selector, such as seed=7; may be given again", metavar="NAME=VALUE"
    )
    lead: int | None = knob(
        None, int, "layers between selecting and attending (default: the selector's own)", metavar="LAYERS"
    )
    runtime: str = knob("offload-prefetch", str, "where blocks live; see `sparda methods`", metavar="NAME")
    resident_layers: int | None = knob(
        None, int, "first layers kept on the device whole (default: as many as the lead)", metavar="LAYERS"
    )
    slots: int | None = knob(
        None, int, "device slots per row and KV head of an offloaded layer (default: the budget)", metavar="BLOCKS",
        least=1,
    )  # fmt: skip
    slot_factor: float | None = knob(
        None, float, "the same, in multiples of the budget", metavar="TIMES", least=1, most=1e6
    )
    policy: str = knob("last-selection", str, "what a full pool keeps: last-selection, lru, score", metavar="NAME")

    engine: str | None = knob(
        None, str, "uva, copy-engine or cpu-gather on a GPU, thread on a CPU (default: the first of these)",
        metavar="NAME", group=COPIES,
    )  # fmt: skip
    ctas: int = knob(2, int, "thread blocks of a copy kernel (uva)", metavar="CTAS", group=COPIES, least=1, most=4096)
    cluster: int = knob(
        1, int, "copy thread blocks that start together on neighbouring SMs (uva)", metavar="CTAS", group=COPIES,
        least=1, most=16,
    )  # fmt: skip
    in_flight_kib: float | None = knob(
        None, float, "KiB that each copy thread block keeps in flight (uva; default: the profile's)", metavar="KIB",
        group=COPIES, least=0.25, most=4096,
    )  # fmt: skip
    host_dtype: str = knob(
        "same", str, "values of the host copy: those of the device, or fp8 with scales on the device",
        metavar="NAME", group=COPIES, choices=("same", "fp8"),
    )  # fmt: skip

    budget: int = knob(
        96, int, "blocks attended per KV head, forced ones included", metavar="BLOCKS", group=BLOCKS, least=1
    )
    sink: int = knob(1, int, "first blocks, always attended", metavar="BLOCKS", group=BLOCKS)
    local: int = knob(
        32, int, "blocks before the current one, always attended; the current one comes on top", metavar="BLOCKS",
        group=BLOCKS,
    )  # fmt: skip
    block: int = knob(64, int, "tokens in a block", metavar="TOKENS", group=BLOCKS, least=1)
    window: int = knob(32, int, "tokens averaged into one entry", metavar="TOKENS", group=BLOCKS, least=1)
    stride: int = knob(16, int, "tokens between starts of two entries", metavar="TOKENS", group=BLOCKS, least=1)

    def __attrs_post_init__(self) -> None:
        if self.slots is not None and self.slot_factor is not None:
            raise ConfigError(f"slots={self.slots} and slot_factor={self.slot_factor} set the same thing; give one")
        for name, value in (("locality", self.locality), ("churn", self.churn)):
            if self.recording is not None and value is not None:
                raise ConfigError(
                    f"recording={self.recording!r} and {name}={value!r} both say what a step misses; give one"
                )

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Every knob by name, in the order of the fields."""
        return {field.name: knob_of(field) for field in attrs.fields(cls)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A scenario from names and values; an unknown name is answered with the nearest knob."""
        check_knobs(values)
        return cls(**values)

    def turned(self, **values: Any) -> Self:
        """The same with some knobs turned; raises as `of`. One of `slots` and `slot_factor` takes the other's place."""
        check_knobs(values)
        for name, other in (("slots", "slot_factor"), ("slot_factor", "slots")):
            if values.get(name) is not None:
                values.setdefault(other, None)
        return attrs.evolve(self, **values)

    def spec(self) -> BlockSpec:
        """How the scenario cuts a row into blocks."""
        return BlockSpec(
            block=self.block, window=self.window, stride=self.stride, sink=self.sink, local=self.local,
            budget=self.budget,
        )  # fmt: skip

    def slot_count(self, budget: int | None = None) -> int:
        """Slots per row and KV head of an offloaded layer; a multiple, of `budget`, is rounded to whole blocks.

        budget  of the selector's own cut (`Selector.cut`); None: the knob
        """
        most = self.budget if budget is None else budget
        if self.slot_factor is not None:
            return round(self.slot_factor * most)
        return most if self.slots is None else self.slots

    def churn_share(self) -> float:
        """`churn`, else the locality's or what the recording misses in a pool of one selection, else CHURN."""
        if self.recording is not None:
            from sparda_core.whatif.recorded import miss_share

            return miss_share(self.turned(policy=LAST_SELECTION, slots=None, slot_factor=None), self.budget)
        if self.churn is None and self.locality is not None:
            from sparda_core.whatif.point import locality_of

            return locality_of(self).churn
        return CHURN if self.churn is None else self.churn

    def machine(self) -> Profile:
        """The profile, with the knobs that change it turned."""
        from sparda_core.whatif.machine import machine_of

        return machine_of(self)

    def combination(self) -> Combination:
        """Selector and runtime, checked against each other; raises as `compose` does."""
        from sparda_core.whatif.point import combination_of

        return combination_of(self)

    def predict(self) -> Prediction:
        """Step time, bound and memory of this point; infeasible points say so and hold no time."""
        from sparda_core.whatif.point import predict_point

        return predict_point(self)


def check_knobs(names: Iterable[str]) -> None:
    """Raise UnknownNameError, with the nearest knob, for a name that is none."""
    known = [field.name for field in attrs.fields(Scenario)]
    for name in names:
        if name not in known:
            raise UnknownNameError(what="knob", name=str(name), known=known)
