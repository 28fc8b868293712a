"""InfiniGen on tokens: every key in a few skewed dimensions, chosen for every row from its own prompt."""

from __future__ import annotations

import attrs
import torch

from sparda_core.errors import PlanError
from sparda_core.kernels.score_proxy.cpu import proxy_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.selectors.tensors.prompt_queries import PromptQueries
from sparda_core.selectors.tensors.proxy_scores import ProxyScorer
from sparda_core.selectors.tensors.row_buffer import RowBuffer
from sparda_core.selectors.tensors.skew import partial_projection


@attrs.define
class _RowLayer:
    """What is known of one row in one layer.

    prompt      queries that calibrate it
    seen        tokens observed, from position 0 on without a gap
    projection  [Hk, D, w], what keys and proxy queries are multiplied by; None before its first use
    calibrated  prompt queries that `projection` was made from
    """

    prompt: PromptQueries = attrs.field(factory=PromptQueries)
    seen: int = 0
    projection: torch.Tensor | None = None
    calibrated: int = 0

    @property
    def stale(self) -> bool:
        """Whether the projection, and with it every partial key, must be made (again) before use."""
        return self.projection is None or self.calibrated != self.prompt.count

    def crop(self, tokens: int) -> None:
        """Forget what came after the first `tokens` tokens."""
        self.seen = min(self.seen, tokens)
        left = self.prompt.cropped(tokens)
        if left.count != self.prompt.count:
            # as many other queries may follow: a count alone would not notice
            self.projection = None
        self.prompt = left


class TokenScorer(ProxyScorer):
    """Scores blocks by the logits of every token.

    The projection is a pure function of the queries of the row's first prompt, of at most
    `calibration_tokens` of them: it is made when it is first wanted, and again after more of that
    prompt or a crop changed those queries. So neither the chunking of a prompt nor batch neighbours
    matter, and a cropped row is as one that never was longer. A row that never had a prompt keeps its
    first dimensions, unskewed.
    """

    def __init__(self, *, kv_heads: int, channels: int, first_layer: int, calibration_tokens: int) -> None:
        self._kv_heads, self._channels = kv_heads, channels
        self._first_layer, self._limit = first_layer, calibration_tokens
        self._state: dict[tuple[int, int], _RowLayer] = {}
        self._partial: dict[int, RowBuffer] = {}

    def observe(self, view: LayerView, key: torch.Tensor) -> None:
        """Append the partial keys of calibrated rows, and keep prompt queries for those that are not yet."""
        if view.layer < self._first_layer:
            return
        for b, (row, positions) in enumerate(zip(view.rows, view.positions.tolist(), strict=True)):
            tokens = sum(position >= 0 for position in positions)
            state = self._of(row, view.layer)
            if tokens == 0 or positions[0] != state.seen:
                continue  # a gap: `block_scores` will say that tokens were never seen
            state.seen += tokens
            if view.phase is Phase.PREFILL and view.query is not None:
                state.prompt = state.prompt.added(positions[0], view.query[b, :, :tokens], limit=self._limit)
            if state.projection is not None and not state.stale:
                self._buffer(view.layer, key).append(row, key[b, :, :tokens] @ state.projection)

    def block_scores(self, proxy: torch.Tensor, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M]; raises PlanError for a row with tokens that `observe` was never shown."""
        self._calibrate(proxy, view)
        states = [self._of(row, view.layer) for row in view.rows]
        unknown = proxy.new_zeros((self._kv_heads, proxy.shape[-1], self._channels))
        projections = [unknown if state.projection is None else state.projection for state in states]
        batch, heads, queries, width = proxy.shape
        grouped = proxy.reshape(batch, self._kv_heads, -1, width)
        skewed = (grouped @ torch.stack(projections)).view(batch, heads, queries, -1)
        partial, counts = self._buffer(view.layer, proxy).batch(view.rows)
        scale = float(self._channels) ** -0.5
        return proxy_block_scores(skewed, partial, counts, view.positions, view.spec, scale)

    def projection_of(self, row: int, layer: int, tokens: int, *, like: torch.Tensor) -> torch.Tensor:
        """[Hk, D, w] of a row whose first `tokens` tokens were observed, calibrated now where that is due.

        `like` [Hk, n, D] gives sizes where there was no prompt. Raises PlanError where other tokens were observed.
        """
        state = self._of(row, layer)
        if state.seen != tokens:
            raise PlanError(
                f"selector 'infinigen' was shown {state.seen} of the {tokens} tokens of row {row} in layer {layer}: "
                "a row must be filled in a session of this selector, or forked from one that was"
            )
        if state.projection is not None and not state.stale:
            return state.projection
        return partial_projection(state.prompt.stacked(like), kv_heads=self._kv_heads, channels=self._channels)

    def row_forked(self, source: int, copy: int) -> None:
        """Copy the partial keys; share the rest."""
        for row, layer in [key for key in self._state if key[0] == source]:
            self._state[copy, layer] = attrs.evolve(self._state[row, layer])
        for buffer in self._partial.values():
            buffer.copy(source, copy)

    def row_cropped(self, row: int, tokens: int) -> None:
        """Cut what is known of the row to its first `tokens` tokens."""
        for (held, _), state in self._state.items():
            if held == row:
                state.crop(tokens)
        for buffer in self._partial.values():
            buffer.crop(row, tokens)

    def row_retired(self, row: int) -> None:
        """Give the row's memory back."""
        for key in [key for key in self._state if key[0] == row]:
            del self._state[key]
        for buffer in self._partial.values():
            buffer.drop(row)

    def _of(self, row: int, layer: int) -> _RowLayer:
        return self._state.setdefault((row, layer), _RowLayer())

    def _buffer(self, layer: int, like: torch.Tensor) -> RowBuffer:
        if layer not in self._partial:
            self._partial[layer] = RowBuffer(
                kv_heads=self._kv_heads, width=self._channels, dtype=like.dtype, device=like.device
            )
        return self._partial[layer]

    def _calibrate(self, proxy: torch.Tensor, view: LayerView) -> None:
        """Bring the active rows' projections and partial keys up to date; reads all keys where one was not."""
        stale = []
        for b, (row, first) in enumerate(zip(view.rows, view.positions[:, 0].tolist(), strict=True)):
            state = self._of(row, view.layer)
            if first > state.seen:
                raise PlanError(
                    f"selector 'infinigen' was shown {state.seen} of the {first} tokens of row {row} in layer "
                    f"{view.layer}: a row must be filled in a session of this selector, or forked from one that was"
                )
            if first >= 0 and state.stale:
                stale.append((b, row, state))
        if not stale:
            return
        keys_BHND, _ = view.keys()
        for b, row, state in stale:
            made = partial_projection(
                state.prompt.stacked(proxy[b]), kv_heads=self._kv_heads, channels=self._channels
            )
            buffer = self._buffer(view.layer, proxy)
            buffer.crop(row, 0)
            buffer.append(row, keys_BHND[b, :, : state.seen] @ made)
            # Last: until every key is there, the row stays one that must be calibrated.
            state.projection, state.calibrated = made, state.prompt.count
