"""CpuSession: rows of one model under one runtime and selector, on a CPU.

The fast tier is a bounded pool, the slow tier the host store, and the copy lane a worker thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.kernels.inference import in_inference
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase, StepPlan
from sparda_core.runtime import Runtime, StepResult
from sparda_core.runtimes.adopt import adopt_row, take_snapshot
from sparda_core.runtimes.copy_lane import CopyLane
from sparda_core.runtimes.decode_step import Counts, DecodeState, DecodeStep
from sparda_core.runtimes.executor import Executor
from sparda_core.runtimes.forecasts import check_forecast
from sparda_core.runtimes.prefill_chunk import ChunkState, PrefillChunk
from sparda_core.runtimes.row_session import RowSession
from sparda_core.runtimes.session_options import SessionOptions, compute_threads, cores
from sparda_core.runtimes.snapshot import PromptQueries, RowSnapshot
from sparda_core.runtimes.threads import ComputeThreads, start_numba
from sparda_core.runtimes.tiers import Tiers
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec

_Made = TypeVar("_Made")


class CpuSession(RowSession):
    """See `Session`. Not safe for use from several threads at once."""

    def __init__(
        self, model: Any, *, runtime: Runtime, selector: Selector, spec: BlockSpec, options: SessionOptions
    ) -> None:  # fmt: skip
        """Open a session; raises ConfigError where the model lacks what the selector needs."""
        super().__init__()
        # A Model is a decoder with its tokenizer; sessions know token ids only.
        decoder = getattr(model, "decoder", model)
        _check(decoder, runtime, selector)
        if decoder.has_forecast and "forecast" not in selector.needs:
            # A selector pays for its own projections only: without this, every step of the others would compute them.
            decoder = decoder.with_forecast(None)
        self._model, self._runtime, self._selector = decoder, runtime, selector
        self.shape, self.spec = decoder.shape, spec
        self.plan: StepPlan = runtime.decode_plan(shape=self.shape, spec=spec, selector=selector)
        self._bound = selector.bind(shape=self.shape, spec=spec)
        self._tiers = Tiers(
            shape=self.shape, spec=spec, resident=self.plan.resident_layers, slots=runtime.slot_count(spec),
            policy=runtime.policy, dtype=_numpy_dtype(decoder.dtype), page_blocks=options.page_blocks,
            host_limit_bytes=options.host_limit_bytes,
        )  # fmt: skip
        self._timeline = options.timeline
        self._queries = PromptQueries(options.keep_queries)
        self._tick = 0
        start_numba()
        self._threads = ComputeThreads(options.threads or compute_threads())
        self._prefill_threads = ComputeThreads(options.threads or cores())
        self._lane = CopyLane(link_bytes_per_s=options.link_bytes_per_s) if runtime.offloads else None
        self._decode = DecodeStep(decoder, self._tiers, self._bound, self._lane)
        self._prefill = PrefillChunk(decoder, self._tiers, self._bound, self._lane, self._queries)
        self._executor = Executor(self.plan, self._decode.bindings(self._selector_kinds(Phase.DECODE)))
        self._prefills: dict[str, Executor[ChunkState]] = {}

    def _selector_kinds(self, phase: Phase) -> frozenset[str]:
        lead = self._runtime.lead(self._selector)
        return frozenset(
            kind
            for layer in range(self.shape.layers)
            for step_lead in {0, lead}
            for kind in self._selector.operations(layer, phase, step_lead)
        )

    # Observers ------------------------------------------------------------------------------------

    @property
    def on_selection(self) -> Callable[[LayerView], None] | None:
        """Called in decode with every final selection; must not change the view."""
        return self._decode.on_selection

    @on_selection.setter
    def on_selection(self, observer: Callable[[LayerView], None] | None) -> None:
        self._decode.on_selection = observer

    @property
    def on_chunk(self) -> Callable[[LayerView], None] | None:
        """Called in prefill by the selector with every layer's selection of a chunk; must not change the view."""
        return self._prefill.on_selection

    @on_chunk.setter
    def on_chunk(self, observer: Callable[[LayerView], None] | None) -> None:
        self._prefill.on_selection = observer

    @property
    def on_layer(self) -> Callable[[LayerView], None] | None:
        """Called in decode before each layer attends, with a view of its own state (its own query, all keys)."""
        return self._decode.on_layer

    @on_layer.setter
    def on_layer(self, observer: Callable[[LayerView], None] | None) -> None:
        self._decode.on_layer = observer

    @property
    def tiers(self) -> Tiers:
        """Where everything lies, to be looked at and not changed (sparda_core/testing judges sessions by it)."""
        self._check_open()
        return self._tiers

    @property
    def transferred(self) -> int:
        """Blocks given to the copy lane since the session opened, those of prefill among them; 0 without a lane."""
        return 0 if self._lane is None else self._lane.submitted

    # Rows -----------------------------------------------------------------------------------------

    def add(self) -> int:
        """A new, empty row at the end of the batch."""
        self._check_idle()
        row = self._next_row

        def added() -> int:
            self._tiers.add(row)
            self._lengths[row], self._next_row = 0, row + 1
            return row

        return self._as_a_whole(added, functools.partial(self._put_back, {}, row))

    def retire(self, row: int) -> None:
        """Give a row's memory back."""
        self._check_idle()
        self._check_row(row)
        forget = functools.partial(self._forget, row)
        self._as_a_whole(forget, forget)  # to its end: half of it done would help nobody

    def _forget(self, row: int) -> None:
        """Give back what is kept of a row, wherever something is."""
        self._lengths.pop(row, None)
        self._tiers.forget(row)
        self._bound.row_retired(row)
        self._queries.retired(row)

    def fork(self, row: int) -> int:
        """A copy of a row, sharing host pages until one of the two writes; at the end of the batch."""
        self._check_idle()
        self._check_row(row)
        copy = self._next_row

        def forked() -> int:
            self._tiers.fork(row, copy)
            self._bound.row_forked(row, copy)
            self._queries.forked(row, copy)
            self._lengths[copy], self._next_row = self._lengths[row], copy + 1
            return copy

        return self._as_a_whole(forked, functools.partial(self._put_back, {}, copy))

    def crop(self, row: int, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens."""
        self._check_idle()
        self._check_cut(row, tokens)
        cut = functools.partial(self._cut, row, tokens)
        self._as_a_whole(cut, cut)  # as in `retire`

    def _commit(self, tokens: Mapping[int, int]) -> None:
        """Say that these rows now hold so many tokens, all of them written."""
        for row, held in tokens.items():
            self._tiers.commit(row, held)
        self._lengths |= tokens

    def _cut(self, row: int, tokens: int) -> None:
        self._lengths[row] = tokens
        self._queries.cropped(row, tokens)
        self._tiers.crop(row, tokens)
        self._bound.row_cropped(row, tokens)

    def set_budget(self, budget: int) -> None:
        """Change the budget from the next step on."""
        self._check_idle()
        spec = self.spec.with_budget(budget)
        self._runtime.check(self._selector, self.shape, spec)
        if self._runtime.offloads:
            self._tiers.resize(self._runtime.slot_count(spec))
        # No call in between: slots and budget change together.
        self.spec = self._tiers.spec = spec

    # Work -----------------------------------------------------------------------------------------

    def prefill(
        self, row: int, tokens: Sequence[int], *, mode: str = "dense", chunk: int = 2048,
        progress: Callable[[int], None] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Append tokens to a row; logits [vocab] after the last."""
        self._check_idle()
        self._check_row(row)
        self._check_chunk(chunk)
        ids = self._check_tokens(tokens)
        executor = self._prefill_executor(mode)
        start, stop = self._lengths[row], self._lengths[row] + len(tokens)

        def read() -> torch.Tensor:
            logits = torch.empty(0)
            self._bound.row_reads(row, start)
            self._tiers.reserve([(row, stop)])
            for offset in range(0, len(tokens), chunk):
                state = self._chunk(row, ids[offset : offset + chunk], start + offset)
                executor.run(state)
                logits = state.last_logits
                if progress is not None:
                    progress(min(offset + chunk, len(tokens)))
            self._tiers.refresh(row, stop, stale_from=start)
            self._prefill.release()
            self._commit({row: stop})
            return logits[0]

        return self._for_rows({row: start}, self._prefill_threads, read)

    def _prefill_executor(self, mode: str) -> Executor[ChunkState]:
        if mode not in self._prefills:
            plan = self._runtime.prefill_plan(shape=self.shape, spec=self.spec, selector=self._selector, mode=mode)
            kinds = self._selector_kinds(Phase.PREFILL) if mode == "selector" else frozenset()
            self._prefills[mode] = Executor(plan, self._prefill.bindings(kinds))
        return self._prefills[mode]

    def _chunk(self, row: int, ids: torch.Tensor, offset: int) -> ChunkState:
        positions = torch.arange(offset, offset + ids.numel())[None]
        return ChunkState(
            rows=(row,), tokens=ids[None], lengths=np.array([offset]), positions=positions,
            rotation=self._model.rotation(positions),
        )  # fmt: skip

    def decode(self, tokens: Mapping[int, int]) -> StepResult:
        """One step for the rows named; the others sit it out."""
        before, ids = self._stepping(tokens)

        def step() -> StepResult:
            self._tiers.reserve([(row, length + 1) for row, length in before.items()])
            state = self._step(before, ids)
            timeline = self._executor.run(state, record=self._timeline)
            result = StepResult(logits=self._in_batch(state), facts=self._facts(state), timeline=timeline)
            self._commit({row: length + 1 for row, length in before.items()})
            return result

        return self._for_rows(before, self._threads, step)

    def _step(self, before: Mapping[int, int], ids: torch.Tensor) -> DecodeState:
        lengths = np.fromiter(before.values(), np.int64)
        positions = torch.from_numpy(lengths)[:, None]
        self._tick += 1
        return DecodeState(
            rows=tuple(before), tokens=ids[:, None], lengths=lengths, positions=positions,
            opened=np.where(lengths % self.spec.block == 0, lengths // self.spec.block, -1),
            rotation=self._model.rotation(positions), tick=self._tick,
            counts=Counts.zeros((self.shape.layers, len(before), self.shape.kv_heads)),
        )  # fmt: skip

    def _in_batch(self, state: DecodeState) -> torch.Tensor:
        made = state.last_logits
        if state.rows == self.rows:
            return made
        logits = made.new_full((len(self.rows), made.shape[1]), float("nan"))
        logits[[self.rows.index(row) for row in state.rows]] = made
        return logits

    def _facts(self, state: DecodeState) -> StepFacts:
        at = [self.rows.index(row) for row in state.rows]
        size = (self.shape.layers, len(self.rows), self.shape.kv_heads)
        counts = {}
        for name in ("selected", "misses", "opened", "late", "wasted"):
            counts[name] = np.zeros(size, np.int64)
            counts[name][:, at] = getattr(state.counts, name)
        active, lengths = np.zeros(len(self.rows), bool), np.zeros(len(self.rows), np.int64)
        active[at], lengths[at] = True, state.lengths + 1
        slots = self._runtime.slot_count(self.spec) if self._runtime.offloads else 0
        return StepFacts(
            new_tokens=1, budget=self.spec.budget, slots=slots, active=active, lengths=lengths, **counts
        )  # fmt: skip

    # Moving rows between sessions ------------------------------------------------------------------

    def snapshot(self, row: int) -> RowSnapshot:
        """The row's cache, to be continued in another session of the same model, on any device."""
        self._check_row(row)
        return take_snapshot(self._tiers, self._queries, row, self._lengths[row])

    def adopt(self, snapshot: RowSnapshot) -> int:
        """A new row that continues a snapshot; raises ConfigError where it is of another shape."""
        self._check_idle()
        row = self._next_row

        def adopted() -> int:
            self._tiers.add(row)
            in_inference(lambda: adopt_row(self._model.query_of, self._tiers, self._bound, row, snapshot))
            self._tiers.commit(row, snapshot.tokens)
            self._lengths[row], self._next_row = snapshot.tokens, row + 1
            return row

        return self._as_a_whole(adopted, functools.partial(self._put_back, {}, row))

    def _used_bytes(self) -> dict[str, int]:
        return self._tiers.used_bytes

    def _release(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._tiers = None  # type: ignore[assignment]

    def _for_rows(self, before: Mapping[int, int], threads: ComputeThreads, work: Callable[[], _Made]) -> _Made:
        """What `work` returns. Whatever interrupts it, the rows in `before` are as they were."""
        return self._as_a_whole(
            lambda: in_inference(lambda: threads.run(work)), functools.partial(self._put_back, before)
        )  # fmt: skip

    def _put_back(self, before: Mapping[int, int], new: int | None = None) -> None:
        """Make rows as long as they were, and a new one not to be."""
        if self._lane is not None:
            self._lane.drain()
            self._lane.mend()
        for row, tokens in before.items():
            self._cut(row, tokens)
            self._tiers.refresh(row, tokens, stale_from=0)
        if new is not None:
            self._forget(new)
        self._tiers.recount()


def _numpy_dtype(dtype: torch.dtype) -> Any:
    known = {torch.float32: np.float32, torch.float64: np.float64}
    if dtype not in known:
        raise ConfigError(f"dtype={dtype} cannot be a CPU tier; load the model in float32 (or float64)")
    return known[dtype]


def _check(model: Any, runtime: Runtime, selector: Selector) -> None:
    if runtime.engine != "thread":
        raise ConfigError(f"engine={runtime.engine!r} needs a GPU; on a CPU use engine='thread'")
    check_forecast(model, selector)
