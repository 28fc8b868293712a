"""Selector: which KV blocks will a layer attend to, and how early is that known?

A selector has two halves. The declaration (`Selector`) is torch-free: lead, operations, work; the
simulator needs no more. `bind` gives the other half (`BoundSelector`), which works on tensors.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext

if TYPE_CHECKING:
    import torch

    from sparda_core.device_view import DeviceView
    from sparda_core.layer_view import LayerView


class Granularity(enum.StrEnum):
    """What one selected id stands for. Runtimes of today take blocks."""

    BLOCK = "block"
    TOKEN = "token"


class Selector(abc.ABC):
    """Declaration of a selection method; frozen, keyword-only options, no tensors.

    name         registry name
    lead         how many layers early it knows; None where any lead will do (it looks at no state)
    granularity  what its ids stand for
    needs        what the model must offer: "forecast" (trained Forecast projections), "token_bias" (a NOSA model's)
    measuring    True for a measuring stick whose own cost is not counted
    """

    name: ClassVar[str]
    lead: int | None = 0
    granularity: Granularity = Granularity.BLOCK
    needs: frozenset[str] = frozenset()
    measuring: bool = False

    @abc.abstractmethod
    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """Kinds of the operations that select for layer `target`, in order; the last sets the selection.

        `lead` is 0 for the first layers, which no layer is early enough before.
        """

    @abc.abstractmethod
    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Work of one of its own operations."""

    def tells_apart(self, op: Op, facts: StepFacts, context: WorkContext) -> tuple[object, ...] | None:
        """What tells the work of two of its operations of one kind apart, within one step.

        Two for which this is equal have equal work under the same facts, so that a prediction works it out once.
        None: nothing is known, and every operation is asked for its own.
        """
        return None

    def check(self, shape: ModelShape, spec: BlockSpec) -> None:  # noqa: B027
        """Raise ConfigError where this method cannot serve models of this shape, or this cut."""

    def cut(self, spec: BlockSpec, tokens: int) -> BlockSpec:
        """The cut under which this method attends to rows of `tokens` tokens where others get `spec`.

        Most leave it as it is; one that takes everything wants room for it, one that never chooses has no free blocks.
        """
        return spec

    @abc.abstractmethod
    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half, fresh for one session; imports torch here and not before."""

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """Bytes of device memory that its GPU half will keep (`DeviceSelector.used_bytes`), for plans made before."""
        return 0

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The half that selects on a GPU, in decode; raises ConfigError where a method has none."""
        raise ConfigError(f"selector {self.name!r} has no GPU half (bind_device); it runs on a CPU only")


@attrs.frozen(kw_only=True)
class DeviceSizes:
    """What the memory of a selector's GPU half follows from; see DeviceRoom. value_bytes: of one key or entry value."""

    shape: ModelShape
    spec: BlockSpec
    places: int
    tokens: int
    value_bytes: int
    lead: int


@attrs.frozen(kw_only=True)
class DeviceRoom:
    """What a selector's GPU half may plan for.

    places  rows that a step can hold at once, B
    tokens  most tokens of a row
    device  a torch.device
    dtype   torch dtype of keys and entries
    lead    layers between selecting and attending
    tick    int32 [1] on the device, steps begun since the session opened; None where nobody counts
    early   how early its kernels are to start, see kernels/early.py; 0: when the one before them has ended
    """

    shape: ModelShape
    spec: BlockSpec
    places: int
    tokens: int
    device: Any
    dtype: Any
    lead: int
    tick: Any = None
    early: int = 0


class DeviceSelector(abc.ABC):
    """GPU half of a selector: launches kernels, reads nothing back, keeps what it needs in memory of fixed size.

    A decode step may be captured once and replayed: `run` and `observe` must launch the same kernels on the same
    memory whatever the data, and take positions from `view.position` only. A place holds one row at a time.
    """

    #: Bytes of device memory that it keeps for its rows.
    used_bytes: int = 0
    #: Whether attention of a resident layer takes every block by itself, so that nobody reads the choice there.
    takes_every_block: ClassVar[bool] = False

    #: Whether its last operation is `choose_blocks` of view.scores and nothing else: then a runtime may leave it out
    #: and choose in one launch with the diff.
    chooses_by_scores: ClassVar[bool] = False

    @abc.abstractmethod
    def run(self, kind: str, view: DeviceView) -> None:
        """Run one of the declared operations; the last one writes `view.choice`."""

    def observe(self, view: DeviceView) -> None:  # noqa: B027
        """See the new tokens of layer view.layer (view.key, view.query), at every step, after its entries."""

    def adopt(  # noqa: B027
        self, place: int, bound: BoundSelector, row: int, tokens: int,
        keys: Callable[[int], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Take over what a CPU half kept for a row, whose first `tokens` tokens are in the cache.

        keys  layer -> the row's post-RoPE keys [Hk, tokens, D], on any device; read at once, layer by layer, by
              selectors that keep something of every key ("infinigen" on tokens), and by no others
        """

    def place_forked(self, source: int, copy: int) -> None:  # noqa: B027
        """The row in place `copy` starts as a copy of that in `source`."""

    def place_cropped(self, place: int, tokens: int) -> None:  # noqa: B027
        """The row in `place` was cut to its first `tokens` tokens."""

    def place_moved(self, source: int, target: int) -> None:  # noqa: B027
        """The row of `source` now lies in `target`."""


class BoundSelector(abc.ABC):
    """Tensor half of a selector, with the state it keeps for the rows of one session.

    Most methods extend `sparda_core.selectors.scored.ScoredSelector`, whose narrow hook is `scores`.
    """

    @abc.abstractmethod
    def run(self, kind: str, view: LayerView) -> None:
        """Run one of the declared operations; the last one sets `view.selection`."""

    def observe(self, view: LayerView, key: torch.Tensor) -> None:  # noqa: B027
        """See the new tokens of layer view.layer (key [B, Hk, T, D], view.query their queries), at every step.

        While a session on a GPU reads a prompt, view.query lies there in the model's dtype, and all else on the CPU.
        """

    def row_forked(self, source: int, copy: int) -> None:  # noqa: B027
        """Row `copy` starts as a copy of `source`."""

    def row_reads(self, row: int, tokens: int) -> None:  # noqa: B027
        """Row `row` of `tokens` tokens begins to read a prompt; `row_cropped(row, tokens)` takes back one cut short.

        What follows then must be as if the prompt had not begun.
        """

    def row_cropped(self, row: int, tokens: int) -> None:  # noqa: B027
        """Row `row` was cut to its first `tokens` tokens."""

    def row_retired(self, row: int) -> None:  # noqa: B027
        """Row `row` is gone."""
