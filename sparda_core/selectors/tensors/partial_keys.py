"""InfiniGen on tokens: every key in a few skewed dimensions, chosen for every row from its own prompt."""

from __future__ import annotations

import attrs
import torch

from sparda_core.errors import PlanError
from sparda_core.kernels.score_proxy.cpu import proxy_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.selectors.tensors.prompt_strength import PromptStrength
from sparda_core.selectors.tensors.proxy_scores import ProxyScorer
from sparda_core.selectors.tensors.row_buffer import RowBuffer
from sparda_core.selectors.tensors.skew import first_dimensions


@attrs.define
class _RowLayer:
    """What is known of one row in one layer.

    prompt      the queries of its prompts; None where nobody asks for them
    seen        tokens observed, from position 0 on without a gap
    projection  [Hk, D, w], what keys and proxy queries are multiplied by; None where it, and with it every partial
                key, must be made (again) before use
    begun       (tokens, prompt) when the last prompt began: a crop to there loses no part of a block
    """

    prompt: PromptStrength | None = None
    seen: int = 0
    projection: torch.Tensor | None = None
    begun: tuple[int, PromptStrength] | None = None

    def crop(self, tokens: int) -> None:
        """Forget what came after the first `tokens` tokens; may be done again where it was interrupted."""
        if self.begun is not None and self.begun[0] == tokens:
            self.learn(self.begun[1])
        elif self.prompt is not None:
            self.learn(self.prompt.cropped(tokens))
        if self.begun is not None and self.begun[0] > tokens:
            self.begun = None
        self.seen = min(self.seen, tokens)

    def learn(self, prompt: PromptStrength) -> None:
        """Take over another prompt; the projection goes where it was made from other queries."""
        if self.prompt is None or prompt.counted != self.prompt.counted:
            # Now, not at the next use: as many other queries may follow a crop, and a count would not notice.
            self.projection = None
        self.prompt = prompt


class TokenScorer(ProxyScorer):
    """Scores blocks by the logits of every token.

    The projection is a pure function of the queries that the row read, see PromptStrength: it is made when it is
    first wanted, and again after another prompt or a crop changed those queries. So neither the chunking of a prompt
    nor batch neighbours matter, and a cropped row is as one that never was longer. What a row reads in a block that
    a crop cut does not count, unless the crop takes back the last prompt and no more. A row that never had a prompt
    keeps its first dimensions, unskewed; so do all rows where `calibration_tokens` is 0.
    """

    def __init__(self, *, kv_heads: int, channels: int, first_layer: int, calibration_tokens: int) -> None:
        self._kv_heads, self._channels = kv_heads, channels
        self._first_layer, self._limit = first_layer, calibration_tokens
        self._state: dict[tuple[int, int], _RowLayer] = {}
        self._partial: dict[int, RowBuffer] = {}

    def observe(self, view: LayerView, key: torch.Tensor) -> None:
        """Learn from what is read, and append the partial keys of rows whose projection that leaves as it is.

        The view's query may lie on another device than the key.
        """
        if view.layer < self._first_layer:
            return
        for b, (row, positions) in enumerate(zip(view.rows, view.positions.tolist(), strict=True)):
            tokens = sum(position >= 0 for position in positions)
            state = self._of(row, view.layer)
            if tokens == 0 or positions[0] != state.seen:
                continue  # a gap: `block_scores` will say that tokens were never seen
            state.seen += tokens
            if self._limit and view.phase is Phase.PREFILL and view.query is not None:
                known = state.prompt or PromptStrength(
                    limit=self._limit, block=view.spec.block, kv_heads=self._kv_heads
                )
                state.learn(known.added(positions[0], view.query[b, :, :tokens]))
            if state.projection is not None:
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
        return self._made(state, like) if state.projection is None else state.projection

    def row_forked(self, source: int, copy: int) -> None:
        """Copy the partial keys; share the rest."""
        for row, layer in [key for key in self._state if key[0] == source]:
            self._state[copy, layer] = attrs.evolve(self._state[row, layer])
        for buffer in self._partial.values():
            buffer.copy(source, copy)

    def row_reads(self, row: int, tokens: int) -> None:
        """Keep what is known of the row, in case the prompt is taken back."""
        for (held, _), state in self._state.items():
            if held == row:
                state.begun = None if state.prompt is None else (tokens, state.prompt)

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

    def _made(self, state: _RowLayer, like: torch.Tensor) -> torch.Tensor:
        if state.prompt is None:
            return first_dimensions(like, kv_heads=self._kv_heads, channels=self._channels)
        return state.prompt.projection(like, channels=self._channels)

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
            if first >= 0 and state.projection is None:
                stale.append((b, row, state))
        if not stale:
            return
        keys_BHND, _ = view.keys()
        for b, row, state in stale:
            made = self._made(state, proxy[b])
            buffer = self._buffer(view.layer, proxy)
            buffer.crop(row, 0)
            buffer.append(row, keys_BHND[b, :, : state.seen] @ made)
            # Last: until every key is there, the row stays one that must be calibrated.
            state.projection = made
