"""A runtime for each law of runtimes, whose sessions break it: bugs that a runtime of one's own could have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import numpy as np

from sparda_core.runtime import StepResult
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class Broken(OffloadSync):
    """`offload-sync` with sessions of another kind."""

    name: ClassVar[str] = "broken"
    kind: Any = CpuSession

    def open(self, model: Any, *, selector: Selector, spec: BlockSpec, **options: Any) -> CpuSession:
        made: CpuSession = self.kind(
            model, runtime=self, selector=selector, spec=spec, options=SessionOptions.of(**options)
        )
        return made


class _Counts(CpuSession):
    """Spoils what a step says of itself."""

    def decode(self, tokens: Mapping[int, int]) -> StepResult:
        return self.spoilt(super().decode(tokens))

    def spoilt(self, result: StepResult) -> StepResult:
        return result


class NearlyRight(_Counts):
    def spoilt(self, result: StepResult) -> StepResult:
        return attrs.evolve(result, logits=result.logits * (1 + 1e-6))


class SitsOutInZeros(_Counts):
    def spoilt(self, result: StepResult) -> StepResult:
        return attrs.evolve(result, logits=result.logits.nan_to_num(nan=0.0))


class CountsOneMore(_Counts):
    """A length too long."""

    def spoilt(self, result: StepResult) -> StepResult:
        more = result.facts.lengths + result.facts.active
        return attrs.evolve(result, facts=attrs.evolve(result.facts, lengths=more))


class MissesNothing(_Counts):
    def spoilt(self, result: StepResult) -> StepResult:
        none = np.zeros_like(result.facts.misses)
        return attrs.evolve(result, facts=attrs.evolve(result.facts, misses=none, late=none))


class WastesTwice(_Counts):
    def spoilt(self, result: StepResult) -> StepResult:
        more = result.facts.misses + 1
        return attrs.evolve(result, facts=attrs.evolve(result.facts, wasted=more * result.facts.active[:, None]))


class NeverCopies(CpuSession):
    """The lane says that it has copied, and has not."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        assert self._lane is not None
        self._decode._lane = _Lazy(self._lane)  # type: ignore[assignment]


class _Lazy:
    def __init__(self, lane: Any) -> None:
        self._lane = lane

    def submit(self, job: Any) -> Any:
        none = attrs.evolve(job, source=job.target, source_ids=job.target_ids)
        return self._lane.submit(none)


class _After(CpuSession):
    """Does something to its tiers after each step."""

    def decode(self, tokens: Mapping[int, int]) -> StepResult:
        result = super().decode(tokens)
        self.spoil(tokens)
        return result

    def spoil(self, tokens: Mapping[int, int]) -> None:
        """What is broken."""


class TwoSlots(_After):
    def spoil(self, tokens: Mapping[int, int]) -> None:
        for pool in self._tiers.pools.values():
            pool._tables.held[:, :, 1] = pool._tables.held[:, :, 0]


class StaleSlots(_After):
    def spoil(self, tokens: Mapping[int, int]) -> None:
        for pool in self._tiers.pools.values():
            pool.array[:, 0, 0] += 1


class DropsTail(_After):
    def spoil(self, tokens: Mapping[int, int]) -> None:
        for row in tokens:
            for pool in self._tiers.pools.values():
                pool.invalidate(row, (self.length(row) - 1) // self.spec.block)


class KeepsNothing(_After):
    """Empties every slot but the tail's, though there is room."""

    def spoil(self, tokens: Mapping[int, int]) -> None:
        for row in tokens:
            self._tiers.refresh(row, self.length(row), stale_from=0)


class LosesTheNewest(_After):
    """The write through to the host store is forgotten."""

    def spoil(self, tokens: Mapping[int, int]) -> None:
        for row in tokens:
            at = self.length(row) - 1
            for layer in self._tiers.pools:
                places = self._tiers.host.physical(layer, row)[:, at // self.spec.block]
                self._tiers.host.array[places, :, at % self.spec.block] = 0


class ReadsDensely(CpuSession):
    """Tokens that are to be appended by choice attend to everything."""

    def prefill(self, row: int, tokens: Sequence[int], *, mode: str = "dense", **options: Any) -> Any:
        return super().prefill(row, tokens, mode="dense", **options)


class ChoosesForTheFirst(CpuSession):
    """Of appended tokens all attend to the blocks that were chosen for the first of their chunk."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        attend = self._prefill._attend

        def alike(op: Any, state: Any) -> None:
            view = state.views.get(op.layer)
            if view is not None:
                told, self._prefill.on_selection = self._prefill.on_selection, None
                if told is not None:
                    told(view)
                view.selection = view.selection[:, :, :1].expand_as(view.selection).contiguous()
                attend(op, state)
                self._prefill.on_selection = told
            else:
                attend(op, state)

        self._prefill._attend = alike  # type: ignore[method-assign]


class LeaksPages(CpuSession):
    def fork(self, row: int) -> int:
        copy = super().fork(row)
        self._tiers.host._pool.take(1)
        return copy


class ForgetsOrder(CpuSession):
    def reorder(self, rows: Sequence[int]) -> None:
        """Forgotten."""


class DeafToBudgets(CpuSession):
    def set_budget(self, budget: int) -> None:
        """Forgotten."""


class Fails(CpuSession):
    def crop(self, row: int, tokens: int) -> None:
        raise ZeroDivisionError("cropped")


class Obliging(CpuSession):
    """Takes any order for one, whatever rows it names."""

    def reorder(self, rows: Sequence[int]) -> None:
        if set(rows) == set(self.rows):
            super().reorder(rows)


_STEPS: list[tuple[Any, ...]] = [("decode", {0: 3}, seed) for seed in range(12)]
_PLAIN: list[tuple[Any, ...]] = [("add",), ("prefill", 0, [1, 5, 2, 8, 3] * 15, 20), *_STEPS]


def _lru(kind: Callable[..., CpuSession]) -> Broken:
    return Broken(kind=kind, policy="lru", slots=8)


#: Law -> a runtime that breaks it, and a story in which it shows.
BROKEN: dict[str, tuple[Broken, list[tuple[Any, ...]]]] = {
    "no-error": (Broken(kind=Fails), [("add",), ("crop", 0, 0)]),
    "refusals": (Broken(kind=Obliging), [("add",), ("refused", "incomplete order", 0)]),
    "rows": (Broken(kind=ForgetsOrder), [("add",), ("add",), ("reorder", [1, 0])]),
    "same-answer": (Broken(kind=NearlyRight), _PLAIN),
    "same-selection": (Broken(kind=DeafToBudgets), [*_PLAIN[:2], ("set_budget", 3), *_STEPS]),
    "sits-out": (Broken(kind=SitsOutInZeros), [*_PLAIN[:2], ("add",), *_STEPS]),
    "counts": (Broken(kind=CountsOneMore), _PLAIN),
    "misses-are-transfers": (Broken(kind=MissesNothing), _PLAIN),
    "counted-once": (Broken(kind=WastesTwice), _PLAIN),
    "resident-when-attended": (Broken(kind=NeverCopies), _PLAIN),
    "one-slot-a-block": (Broken(kind=TwoSlots), _PLAIN),
    "slots-hold-copies": (Broken(kind=StaleSlots), _PLAIN),
    "tail-in-a-slot": (Broken(kind=DropsTail), _PLAIN),
    "victims": (_lru(KeepsNothing), _PLAIN),
    "nothing-lost": (Broken(kind=LosesTheNewest), _PLAIN),
    "pages": (Broken(kind=LeaksPages), [*_PLAIN[:2], ("fork", 0)]),
}

