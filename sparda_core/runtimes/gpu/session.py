"""GpuSession: rows of one model under one runtime and selector, on a GPU. A step is one CUDA graph.

Memory for all places is taken when the session opens. A row lies in a place; the places in use are the first ones,
so that a step covers a bucket of them (1, 2, 4, ... places). What the host knows (lengths, order, pages) never
depends on what the device computes: a step is issued without reading anything back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.inference import in_inference
from sparda_core.late import with_late
from sparda_core.runtime import Runtime, StepResult
from sparda_core.runtimes.adopt import check_snapshot
from sparda_core.runtimes.forecasts import check_forecast
from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.chosen import ChosenAttention
from sparda_core.runtimes.gpu.graphs import bucket_of
from sparda_core.runtimes.gpu.last_step import LastStep
from sparda_core.runtimes.gpu.machinery import Machinery
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.prefill import Attention, attend_dense, prefill_chunk
from sparda_core.runtimes.gpu.prompt import CpuHalf
from sparda_core.runtimes.gpu.refusals import check_place, check_room
from sparda_core.runtimes.gpu.sampling_bounds import SEEDS
from sparda_core.runtimes.gpu.tiers import short_of_memory
from sparda_core.runtimes.planner import check_mode
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.runtimes.threads import start_numba
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, check_integer

_Made = TypeVar("_Made")


class GpuSession(LastStep):
    """See `Session`. Not safe for use from several threads at once."""

    draws = True

    def __init__(
        self, model: Any, *, runtime: Runtime, selector: Selector, spec: BlockSpec, options: GpuOptions
    ) -> None:  # fmt: skip
        """Open a session; raises ConfigError where the model lacks what the selector needs, CapacityError where
        memory for `options.places` rows cannot be had.
        """
        super().__init__()
        start_numba()
        decoder = getattr(model, "decoder", model)
        check_forecast(decoder, selector)
        if decoder.has_forecast and "forecast" not in selector.needs:
            # A selector pays for its own projections only: without this, every step of the others would compute them.
            decoder = decoder.with_forecast(None)
        self.shape, self._options = decoder.shape, options
        self._drawn: set[int] = set()  # rows whose next token is known on the device
        self._machinery = Machinery(decoder, runtime=runtime, selector=selector, spec=spec, options=options)
        self._half = CpuHalf(
            selector.bind(shape=self.shape, spec=spec), shape=self.shape, spec=spec, keep_queries=options.keep_queries
        )
        self.plan, self.spec = self._machinery.plan, spec

    @property
    def machinery(self) -> Machinery:
        """What knows places, not rows. For measurements: whoever steps by it alone leaves the rows behind."""
        self._check_open()
        return self._machinery

    def claim(self, tokens: int) -> int:
        """A new row of `tokens` tokens that nobody wrote: its memory holds whatever it held. For measurements."""
        self._check_idle()
        place = self._free_place()
        check_room({self._next_row: 0}, tokens, self._machinery.tokens)

        def taken() -> int:
            row = self._begin(place)
            self._machinery.reserve({place: tokens})
            self._machinery.commit({place: tokens})
            self._lengths[row] = tokens
            return row

        return self._take(place, taken)

    def describe(self) -> dict[str, str]:
        """How steps run: engine, capture, copy kernel, memory."""
        self._check_open()
        return self._machinery.describe()

    @property
    def capacity(self) -> CapacityPlan:
        """What it took of device and host memory, by part."""
        self._check_open()
        return self._machinery.capacity

    # Rows -----------------------------------------------------------------------------------------

    def add(self) -> int:
        """A new, empty row at the end of the batch; raises CapacityError where every place is taken."""
        self._check_idle()
        place = self._free_place()
        return self._take(place, lambda: self._begin(place))

    def _begin(self, place: int) -> int:
        """An empty row in a free place."""
        chosen = self._options
        self._machinery.add(place)
        seed = (chosen.seed + self._next_row) % SEEDS
        self._machinery.set_sampling(place, chosen.temperature, chosen.top_p, seed)
        if self._half.observes:
            # What was learnt from the place's last row is not this one's.
            self._machinery.hand_over(place, self._half.bound, self._next_row, 0)
        return self._seat(place, 0)

    def fork(self, row: int) -> int:
        """A copy of a row, sharing host pages until one of the two writes; at the end of the batch."""
        self._check_idle()
        self._check_row(row)
        place = self._free_place()

        def copied() -> int:
            self._machinery.fork(self._place[row], place)
            copy = self._seat(place, self._lengths[row])
            self._half.forked(row, copy)
            if row in self._drawn:
                self._drawn.add(copy)
            return copy

        return self._take(place, copied)

    def retire(self, row: int) -> None:
        """Give a row's memory back. The row of the last place moves into the place that becomes free."""
        self._check_idle()
        self._check_row(row)
        leave = functools.partial(self._leave, row, self._place[row], len(self._place) - 1)
        self._work(leave, undo=leave)  # to its end: half of it done would help nobody

    def _leave(self, row: int, place: int, last: int) -> None:
        """Empty the place of a row, and bring the row of the last place there; may be done again."""
        self._unlist(row)
        if row in self._place:
            self._machinery.vacate(place)
            del self._place[row]
        for other, held in self._place.items():
            if held == last:
                self._machinery.move(last, place)
                self._place[other] = place

    def _unlist(self, row: int) -> None:
        """Forget all of a row but its place."""
        self._lengths.pop(row, None)
        self._stepped.pop(row, None)
        self._drawn.discard(row)
        self._half.retired(row)

    def crop(self, row: int, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens."""
        self._check_idle()
        self._check_cut(row, tokens)
        self._drawn.discard(row)
        cut = functools.partial(self._cut, row, tokens)
        self._work(cut, undo=functools.partial(cut, again=True))  # as in `retire`

    def set_budget(self, budget: int) -> None:
        """Change the budget from the next step on. Memory is taken anew and every row read into it, with empty
        slots, so this takes as long as opening the session; steps are captured again. Where neither the new memory
        nor the old can be had, the session closes.
        """
        self._check_idle()
        spec, before = self.spec.with_budget(budget), self.spec
        self._machinery.check(spec)
        rows = [(row, self.snapshot(row)) for row in sorted(self._place, key=self._place.__getitem__)]
        try:
            self._reopen(spec, rows)
        except BaseException:
            try:
                self._reopen(before, rows)
            except BaseException:
                self.close()
                raise
            raise

    def _reopen(self, spec: BlockSpec, rows: Sequence[tuple[int, RowSnapshot]]) -> None:
        machinery = self._machinery
        self._stepped = {}  # its results go with the memory that they lie in

        def reopened() -> None:
            machinery.reopen(spec)
            self._half.spec = self.spec = spec
            for place, (row, snapshot) in enumerate(rows):
                machinery.add(place)
                machinery.load(place, snapshot)
                # What the row decoded only the device's half saw, and that one is new.
                self._half.catch_up(row, snapshot.tokens, _keys_of(snapshot))
                machinery.hand_over(place, self._half.bound, row, snapshot.tokens)

        self._work(reopened)

    def set_sampling(self, row: int, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        """How `run` chooses this row's next tokens: 0 is greedy; the same seed gives the same tokens."""
        self._check_idle()
        self._check_row(row)
        self._work(lambda: self._machinery.set_sampling(self._place[row], temperature, top_p, seed))

    def _free_place(self) -> int:
        return check_place(len(self._place), self._options.places)

    def _take(self, place: int, work: Callable[[], int]) -> int:
        """The row that `work` puts into a free place. Whatever interrupts it, the place is free again."""
        return self._work(work, undo=functools.partial(self._give_up, place))

    def _give_up(self, place: int) -> None:
        for row in [row for row, held in self._place.items() if held == place]:
            self._unlist(row)
            del self._place[row]
        self._machinery.vacate(place)

    def _seat(self, place: int, tokens: int) -> int:
        row = self._next_row
        # No call in between: a row has a place and a length, or there is none.
        self._place[row], self._lengths[row] = place, tokens
        self._next_row = row + 1
        return row

    def _cut(self, row: int, tokens: int, *, again: bool = False) -> None:
        """`again`: something was cut short, and what was learnt of the row may have been handed over or not."""
        self._lengths[row] = tokens
        relearnt = self._half.cropped(row, tokens) or (again and self._half.knows(row, tokens))
        self._machinery.crop(self._place[row], tokens)
        if relearnt:
            self._machinery.hand_over(self._place[row], self._half.bound, row, tokens)

    # Work -----------------------------------------------------------------------------------------

    def prefill(
        self, row: int, tokens: Sequence[int], *, mode: str = "dense", chunk: int = 2048,
        progress: Callable[[int], None] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Append tokens to a row; logits [vocab] after the last, on the CPU. `run` goes on with a token drawn from
        them. Raises ConfigError for an unknown mode.
        """
        self._check_idle()
        self._check_row(row)
        self._check_chunk(chunk)
        check_mode(mode)
        ids = self._check_tokens(tokens)
        start, machinery, place = self._lengths[row], self._machinery, self._place[row]
        stop = start + ids.numel()
        check_room({row: start}, ids.numel(), machinery.tokens)

        def read() -> torch.Tensor:
            logits = torch.empty(0)
            machinery.reserve({place: stop})
            self._half.catch_up(row, start, lambda layer, first: machinery.tiers.read(place, layer, first, start)[0])
            self._half.bound.row_reads(row, start)
            observe, attend = self._half.observer(row), self._attention(row, mode)
            for offset in range(0, ids.numel(), chunk):
                part = ids[offset : offset + chunk].to(machinery.device)
                logits = prefill_chunk(machinery.decoder, machinery.tiers, place, part, start + offset, observe, attend)
                if progress is not None:
                    progress(min(offset + chunk, ids.numel()))
            self._half.read(row, stop)
            machinery.settle_row(place, stop, stale_from=start)
            machinery.commit({place: stop})
            machinery.hand_over(place, self._half.bound, row, stop)
            self._drawn.discard(row)
            machinery.sample_first(place, logits, stop - 1)
            logits = logits.float().cpu()
            self._lengths[row] = stop
            self._drawn.add(row)
            return logits

        return self._work(read, {row: start})

    def _attention(self, row: int, mode: str) -> Attention:
        if mode == "dense":
            return attend_dense
        machinery, place = self._machinery, self._place[row]
        return ChosenAttention(
            bound=self._half.bound, selector=machinery.selector, spec=self.spec, row=row,
            query_of=machinery.decoder.query_of, entries=lambda layer: machinery.tiers.layers[layer].entries[place],
            means=lambda layer: machinery.tiers.means(layer, place), forecast_lead=machinery.decoder.forecast_lead,
        )  # fmt: skip

    def decode(self, tokens: Mapping[int, int]) -> StepResult:
        """One step for the rows named; the others sit it out. Reads logits and facts back."""
        before, ids = self._stepping(tokens)
        self._steps(list(before), 1, dict(zip(before, ids.tolist(), strict=True)))

        def told() -> StepResult:
            facts, timeline = self.last_facts(), self._machinery.timeline()
            if timeline is not None:
                facts = with_late(facts, timeline, self.plan)
            return StepResult(logits=self.last_logits(), facts=facts, timeline=timeline)

        # Most of a step's time passes here, so this is where Ctrl-C comes: nobody would learn that the step was made.
        return self._work(told, before)

    def run(self, steps: int, tokens: Mapping[int, int] | None = None) -> None:
        """`steps` steps of every row, whose tokens are sampled on the device; nothing is read back or waited for.

        tokens  first tokens of rows; the others go on with the one drawn by the step, or the prefill, before
        """
        self._run(steps, tokens, None)

    def draw(self, steps: int, tokens: Mapping[int, int] | None = None) -> dict[int, list[int]]:
        """As `run`, and waits once at the end: by row, the token that each step drew, oldest first.

        What the first step took is not among them: after a prefill, `tokens` tells it.
        """
        self._check_idle()
        check_integer("steps", steps, 1)
        check_room(self._lengths, steps, self._machinery.tokens)
        drawn = torch.empty(steps, self._options.places, dtype=torch.int64, device=self._machinery.device)
        before = dict(self._lengths)
        self._run(steps, tokens, drawn)
        by_place = self._work(drawn.T.tolist, before)  # as in `decode`: Ctrl-C comes while the host waits here
        return {row: by_place[self._place[row]] for row in self.rows}

    def _run(self, steps: int, tokens: Mapping[int, int] | None, drawn: torch.Tensor | None) -> None:
        self._check_idle()
        check_integer("steps", steps, 1)
        given = {} if tokens is None else tokens
        for row in given:
            self._check_row(row)
        unknown = [row for row in self.rows if row not in given and row not in self._drawn]
        if unknown or not self.rows:
            raise ConfigError(f"tokens must name the first token of rows {unknown or 'of the session, which has none'}")
        if given:
            self._check_tokens(list(given.values()))
        self._steps(self.rows, steps, given, drawn)

    def _steps(
        self, active: Sequence[int], steps: int, tokens: Mapping[int, int], drawn: torch.Tensor | None = None
    ) -> None:
        before = {row: self._lengths[row] for row in active}
        check_room(before, steps, self._machinery.tokens)
        lengths = {self._place[row]: length for row, length in before.items()}
        given = {self._place[row]: token for row, token in tokens.items()}

        def issue() -> None:
            self._machinery.reserve({place: length + steps for place, length in lengths.items()})
            # From here on neither what was drawn nor what the last step left is there any more.
            self._drawn.difference_update(active)
            self._stepped = {}
            self._machinery.run(bucket_of(len(self._place), self._options.places), lengths, given, steps, drawn)
            self._machinery.commit({place: length + steps for place, length in lengths.items()})
            self._lengths.update({row: length + steps for row, length in before.items()})
            self._stepped = {row: (self._place[row], self._lengths[row]) for row in active}
            self._drawn.update(active)

        self._work(issue, before)

    # Moving rows between sessions ------------------------------------------------------------------

    def snapshot(self, row: int) -> RowSnapshot:
        """The row's cache, to be continued in another session of the same model, on any device."""
        self._check_idle()
        self._check_row(row)
        place, tokens = self._place[row], self._lengths[row]

        def read() -> RowSnapshot:
            tiers, layers = self._machinery.tiers, range(self.shape.layers)
            parts = [tiers.read(place, layer, 0, tokens) for layer in layers]
            return self._half.snapshot(row, tokens, parts, [tiers.read_bias(place, layer, tokens) for layer in layers])

        return self._work(read)

    def adopt(self, snapshot: RowSnapshot) -> int:
        """A new row that continues a snapshot; raises ConfigError where it is of another shape."""
        check_snapshot(snapshot, self.shape)
        snapshot = snapshot.plain()
        self._check_idle()
        place = self._free_place()
        check_room({self._next_row: 0}, snapshot.tokens, self._machinery.tokens)

        def taken() -> int:
            row = self._begin(place)
            self._machinery.load(place, snapshot)
            self._half.adopt(row, snapshot)
            self._machinery.hand_over(place, self._half.bound, row, snapshot.tokens)
            self._lengths[row] = snapshot.tokens
            return row

        return self._take(place, taken)

    def _used_bytes(self) -> dict[str, int]:
        return self._machinery.used_bytes

    def _release(self) -> None:
        self._place.clear()
        self._machinery.close()

    def _work(
        self, work: Callable[[], _Made], before: Mapping[int, int] | None = None,
        *, undo: Callable[[], None] = lambda: None,
    ) -> _Made:  # fmt: skip
        """What `work` returns, issued to the compute lane. Whatever interrupts it, the rows in `before` are as they
        were, and `undo` is done, to its end.
        """

        def put_back() -> None:
            self._machinery.lanes.settle()
            self._put_back(before or {})
            undo()

        return self._as_a_whole(lambda: self._issued(work), lambda: self._issued(put_back))

    def _issued(self, work: Callable[[], _Made]) -> _Made:
        lanes = self._machinery.lanes
        with short_of_memory(self._machinery.capacity):
            return in_inference(lambda: lanes.step(work))

    def _put_back(self, before: Mapping[int, int]) -> None:
        for row, tokens in before.items():
            if self._lengths[row] != tokens:  # the step was made, and is undone
                self._drawn.discard(row)
                self._stepped.pop(row, None)
            self._cut(row, tokens, again=True)
            self._machinery.settle_row(self._place[row], tokens, stale_from=0)


def _keys_of(snapshot: RowSnapshot) -> Callable[[int, int], torch.Tensor]:
    """(layer, first) -> keys [Hk, n, D] of the tokens from `first` on, on the CPU."""
    return lambda layer, first: torch.from_numpy(snapshot.keys[layer, :, first:])
