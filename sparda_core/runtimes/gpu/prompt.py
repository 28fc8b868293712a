"""What a GPU session keeps on the CPU for its rows: the selector's CPU half, which learns from prompts, and queries
for snapshots. The device's half takes over what the CPU's knows when a prompt has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sparda_core.errors import PlanError
from sparda_core.layer_view import EntryView, LayerView
from sparda_core.plan import Phase
from sparda_core.runtimes.gpu.prefill import Observer
from sparda_core.runtimes.snapshot import PromptQueries, RowSnapshot
from sparda_core.selector import BoundSelector
from sparda_core.shapes import BlockSpec, ModelShape


class CpuHalf:
    """State of rows by id. A selector that observes nothing costs nothing here."""

    def __init__(self, bound: BoundSelector, *, shape: ModelShape, spec: BlockSpec, keep_queries: int) -> None:
        self.bound, self.spec = bound, spec
        self._shape = shape
        self.observes = type(bound).observe is not BoundSelector.observe
        self._keeps = keep_queries > 0
        self._queries = PromptQueries(keep_queries)
        self._seen: dict[int, int] = {}

    def forked(self, row: int, copy: int) -> None:
        """Row `copy` starts as a copy of `row`."""
        self.bound.row_forked(row, copy)
        self._queries.forked(row, copy)
        self._seen[copy] = self._seen.get(row, 0)

    def cropped(self, row: int, tokens: int) -> bool:
        """Row `row` was cut to its first `tokens` tokens. True where what was learnt from its prompt is another now,
        so that the device's half must take it over again.
        """
        seen = self._seen.get(row, 0)
        self.bound.row_cropped(row, tokens)
        self._queries.cropped(row, tokens)
        self._seen[row] = min(tokens, seen)
        return self.observes and tokens < seen

    def knows(self, row: int, tokens: int) -> bool:
        """Whether it learns from rows and was shown exactly the first `tokens` tokens of this one."""
        return self.observes and self._seen.get(row, 0) == tokens

    def retired(self, row: int) -> None:
        """Row `row` is gone."""
        self.bound.row_retired(row)
        self._queries.retired(row)
        self._seen.pop(row, None)

    def observer(self, row: int) -> Observer:
        """Sees the chunks of a row's prompt."""
        if not (self.observes or self._keeps):
            return lambda *_: None

        def see(layer: int, query: torch.Tensor, key: torch.Tensor, start: int) -> None:
            if self._keeps:
                self._queries.see(row, layer, query.float().cpu()[None], start)
            # Not moved: a prompt's queries are several times its keys, and who observes them keeps few.
            self._observe(row, layer, Phase.PREFILL, query, key, start)

        return see

    def catch_up(self, row: int, tokens: int, keys_from: Callable[[int, int], torch.Tensor]) -> None:
        """Show the CPU half what the row decoded since its last prompt, up to `tokens` tokens.

        keys_from  (layer, start) -> keys [Hk, tokens - start, D]
        """
        seen = self._seen.get(row, 0)
        if self.observes and seen < tokens:
            for layer in range(self._shape.layers):
                self._observe(row, layer, Phase.DECODE, None, keys_from(layer, seen), seen)
        self._seen[row] = tokens

    def read(self, row: int, tokens: int) -> None:
        """The row's prompt has been read, up to `tokens` tokens."""
        self._seen[row] = tokens

    def snapshot(
        self, row: int, tokens: int, parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
        biases: Sequence[torch.Tensor | None],
    ) -> RowSnapshot:  # fmt: skip
        """A row's cache from K and V [Hk, tokens, D] and biases [Hk, tokens] of each layer; values of 16 bits are
        widened.
        """
        kept = []
        for layer in range(self._shape.layers):
            seen = self._queries.of(row, layer)
            empty = torch.empty(self._shape.q_heads, 0, self._shape.head_dim)
            kept.append((torch.cat(list(seen), dim=1) if seen else empty).numpy())
        keys, values = (np.stack([_wide(pair[i]).numpy() for pair in parts]) for i in (0, 1))
        known = [bias.cpu().numpy() for bias in biases if bias is not None]
        return RowSnapshot(
            tokens=tokens, keys=keys, values=values, queries=np.stack(kept), bias=np.stack(known) if known else None
        )

    def adopt(self, row: int, snapshot: RowSnapshot) -> None:
        """See a snapshot as a prompt of two chunks: the tokens whose queries were kept, then the others."""
        read = min(snapshot.queries.shape[2], snapshot.tokens)
        for layer in range(self._shape.layers):
            keys = torch.from_numpy(snapshot.keys[layer])
            for start, stop in ((0, read), (read, snapshot.tokens)):
                queries = torch.from_numpy(snapshot.queries[layer, :, start:stop]) if stop == read else None
                self._observe(row, layer, Phase.PREFILL, queries, keys[:, start:stop], start)
        self._seen[row] = snapshot.tokens

    def _observe(
        self, row: int, layer: int, phase: Phase, query: torch.Tensor | None, key: torch.Tensor, start: int
    ) -> None:
        if not self.observes or not key.shape[1]:
            return
        fresh, stop = _wide(key)[None], start + key.shape[1]
        nothing = EntryView(
            buffer=fresh.new_empty(1, key.shape[0], 0, key.shape[2]), rows=torch.zeros(1, dtype=torch.int64),
            counts=torch.zeros(1, dtype=torch.int64),
        )  # fmt: skip
        view = LayerView(
            layer=layer, source=layer, phase=phase, spec=self.spec, rows=(row,),
            positions=torch.arange(start, stop)[None], x=fresh.new_empty(1, key.shape[1], 0),
            query=None if query is None else query[None], forecast=None, entries=nothing, query_of=_not_here,
            keys=_not_here,
        )  # fmt: skip
        self.bound.observe(view, fresh)


def _wide(part: torch.Tensor) -> torch.Tensor:
    """On the CPU, in float32 where it was narrower: numpy and our CPU kernels know no bfloat16."""
    wide = part if part.dtype == torch.float64 else part.float()
    return wide.cpu()


def _not_here(*_: Any) -> Any:
    raise PlanError("a selector that observes a row for a GPU may read the row's new tokens only")
