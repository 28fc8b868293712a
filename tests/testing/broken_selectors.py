"""A selector for each law, which breaks that law and is otherwise as good as any."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch

from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.layer_view import LayerView
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.selectors.query import Query
from sparda_core.selectors.tensors.query import BoundQuery
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Broken(Query):
    """`query` with another tensor half."""

    name: ClassVar[str] = "broken"
    half: Any = None

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        bound: BoundSelector = self.half()
        return bound


class _Spoils(BoundQuery):
    """Chooses as `query` does, then spoils it."""

    def run(self, kind: str, view: LayerView) -> None:
        super().run(kind, view)
        if kind == "select":
            assert view.selection is not None
            view.selection = self.spoilt(view, view.selection)

    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        return chosen


class OverBudget(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        wide = view.spec.with_budget(view.spec.budget + 1)
        assert view.scores is not None
        return choose_blocks(view.scores, view.positions, wide)


class WrongDtype(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        return chosen.long()


class Repeats(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        spoilt = chosen.clone()
        spoilt[..., 1:][spoilt[..., 1:] < 0] = 0
        return spoilt


class Unordered(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        return chosen.flip(-1)


class Future(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        spoilt, ahead = chosen.clone(), view.positions // view.spec.block + 1
        spoilt[..., -1] = torch.where(spoilt[..., -1] < 0, spoilt[..., -1], ahead[:, None].int())
        return spoilt


class NoSink(_Spoils):
    """Forgets the first block of a long row."""

    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        gone = torch.full_like(chosen[..., :1], -1)
        return torch.where(chosen[..., -1:] >= 0, torch.cat((chosen[..., 1:], gone), -1), chosen)


class Moody(BoundQuery):
    """Scores differ from session to session."""

    sessions = 0

    def __init__(self) -> None:
        type(self).sessions += 1
        self._sign = (-1.0) ** type(self).sessions

    def scores(self, view: LayerView) -> torch.Tensor:
        return self._sign * super().scores(view)


class Sometimes(Moody):
    """The first ten sessions of a process are as they should be, and every third after them."""

    def __init__(self) -> None:
        super().__init__()
        made = type(self).sessions
        self._sign = -1.0 if made > 10 and made % 3 else 1.0


class Neighbourly(BoundQuery):
    """A row's scores are ranked against its neighbours'."""

    def scores(self, view: LayerView) -> torch.Tensor:
        scores = super().scores(view)
        return scores if scores.shape[0] == 1 else -scores


class FirstRowOfAll(BoundQuery):
    """Every row goes by the scores of the first."""

    def scores(self, view: LayerView) -> torch.Tensor:
        scores = super().scores(view)
        return scores[:1].expand_as(scores).clone()


class NeverInactive(_Spoils):
    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        return torch.where(view.positions[:, None, :, None] < 0, torch.zeros_like(chosen), chosen)


class Chunky(BoundQuery):
    """Scores turn round with the parity of a chunk's length."""

    def scores(self, view: LayerView) -> torch.Tensor:
        scores = super().scores(view)
        return -scores if view.phase is Phase.PREFILL and view.positions.shape[1] % 2 else scores


class Peeks(BoundQuery):
    """Reads beyond the count of entries."""

    def scores(self, view: LayerView) -> torch.Tensor:
        beyond = float(view.entries.buffer[:, :, -1].nan_to_num(nan=0.0).max())
        scores = super().scores(view)
        return -scores if beyond > 0 else scores


class Faints(BoundQuery):
    """Gives up where it sees NaN."""

    def scores(self, view: LayerView) -> torch.Tensor:
        keys, counts = view.keys()
        if any(keys[row, :, :count].isnan().any() for row, count in enumerate(counts.tolist())):
            raise FloatingPointError("a key is NaN")
        return super().scores(view)


class Scribbles(BoundQuery):
    def scores(self, view: LayerView) -> torch.Tensor:
        scores = super().scores(view)
        view.x.zero_()
        return scores


class _Remembers(BoundQuery):
    """Turns its scores round for rows of which it has seen an odd number of tokens: state that must follow rows."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], int] = {}

    def observe(self, view: LayerView, key: torch.Tensor) -> None:
        for row, at in zip(view.rows, view.positions.tolist(), strict=True):
            if at[-1] >= 0:
                self.seen[row, view.layer] = self.seen.get((row, view.layer), 0) + len(at)

    def scores(self, view: LayerView) -> torch.Tensor:
        scores = super().scores(view)
        for at, row in enumerate(view.rows):
            if view.phase is Phase.DECODE and self.seen.get((row, view.layer), 0) % 2:
                scores[at] *= -1
        return scores

    def row_forked(self, source: int, copy: int) -> None:
        self.seen.update({(copy, layer): n for (row, layer), n in self.seen.items() if row == source})

    def row_cropped(self, row: int, tokens: int) -> None:
        self.seen.update({(one, layer): tokens for one, layer in self.seen if one == row})

    def row_retired(self, row: int) -> None:
        self.seen = {key: n for key, n in self.seen.items() if key[0] != row}


class ForgetsForks(_Remembers):
    def row_forked(self, source: int, copy: int) -> None:
        """Forgotten."""


class ForgetsCrops(_Remembers):
    def row_cropped(self, row: int, tokens: int) -> None:
        """Forgotten."""


class RetiresAll(_Remembers):
    def row_retired(self, row: int) -> None:
        self.seen = {key: n + 1 for key, n in self.seen.items()}


class HigherId(BoundQuery):
    def run(self, kind: str, view: LayerView) -> None:
        if kind == "select":
            assert view.scores is not None
            blocks = torch.arange(view.scores.shape[-1], dtype=view.scores.dtype)
            view.selection = choose_blocks(view.scores + 1e-9 * blocks, view.positions, view.spec)
        else:
            super().run(kind, view)


class NanFirst(BoundQuery):
    def run(self, kind: str, view: LayerView) -> None:
        if kind == "select":
            assert view.scores is not None
            view.selection = choose_blocks(view.scores.nan_to_num(nan=1e30), view.positions, view.spec)
        else:
            super().run(kind, view)


class Worst(BoundQuery):
    """The worst blocks by the query."""

    def scores(self, view: LayerView) -> torch.Tensor:
        return -super().scores(view)


class Stingy(_Spoils):
    """Forced blocks alone, however large the budget."""

    def spoilt(self, view: LayerView, chosen: torch.Tensor) -> torch.Tensor:
        forced = view.spec.with_budget(view.spec.forced)
        narrow = choose_blocks(torch.zeros(*chosen.shape[:3], 0), view.positions, forced)
        spoilt = torch.full_like(chosen, -1)
        spoilt[..., : narrow.shape[-1]] = narrow
        return spoilt


class RunsAnything(BoundQuery):
    def run(self, kind: str, view: LayerView) -> None:
        if kind in ("score", "select"):
            super().run(kind, view)


@attrs.frozen(kw_only=True)
class Nameless(Query):
    name: ClassVar[str] = ""


@attrs.frozen(kw_only=True)
class Endless(Query):
    def work(self, op: Op, facts: Any, context: WorkContext) -> Work:
        return Work(flops=float("inf"))


#: Law -> a selector that breaks it.
BROKEN: dict[str, Selector] = {
    "declaration": Nameless(), "work": Endless(), "undeclared-kind": Broken(half=RunsAnything),
    "within-budget": Broken(half=OverBudget), "form": Broken(half=WrongDtype), "no-repeats": Broken(half=Repeats),
    "order": Broken(half=Unordered), "no-future-block": Broken(half=Future), "forced-blocks": Broken(half=NoSink),
    "same-again": Broken(half=Moody), "neighbours": Broken(half=Neighbourly),
    "order-of-rows": Broken(half=FirstRowOfAll), "inactive-rows": Broken(half=NeverInactive),
    "chunks": Broken(half=Chunky), "unseen-memory": Broken(half=Peeks), "nan-in-sight": Broken(half=Faints),
    "leaves-the-view": Broken(half=Scribbles), "fork": Broken(half=ForgetsForks), "crop": Broken(half=ForgetsCrops),
    "retire": Broken(half=RetiresAll), "lower-id": Broken(half=HigherId), "nan-ranks-last": Broken(half=NanFirst),
    "brute-force": Broken(half=Worst), "dense-when-all-fits": Broken(half=Stingy),
}  # fmt: skip
