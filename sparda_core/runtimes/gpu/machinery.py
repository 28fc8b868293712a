"""Machinery: everything behind a GPU session that knows places, not rows: memory, lanes, bindings, graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.kernels.attend.gpu import attend_scratch
from sparda_core.kernels.early import early_of
from sparda_core.kernels.sample.gpu import SampleScratch, sample_scratch
from sparda_core.plan import Lane, Phase
from sparda_core.runtime import Runtime
from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.clock import clock_of
from sparda_core.runtimes.gpu.counted import counted_facts
from sparda_core.runtimes.gpu.engines import check_engine, make_engine
from sparda_core.runtimes.gpu.executor import Issue, Piece, pieces_of
from sparda_core.runtimes.gpu.graphs import Captured, Eager, Replays, StepKey
from sparda_core.runtimes.gpu.lanes import StreamLanes, lanes_of
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.places import first_of_tier
from sparda_core.runtimes.gpu.sampling import Sampling, draw
from sparda_core.runtimes.gpu.session_plan import check_slots_for, session_plan
from sparda_core.runtimes.gpu.step import DecodeStep, StepParts
from sparda_core.runtimes.gpu.tiers import GpuTiers, short_of_memory
from sparda_core.runtimes.gpu.upload import upload
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.selector import BoundSelector, DeviceRoom, Selector
from sparda_core.shapes import BlockSpec
from sparda_core.spans import Timeline


class Machinery:
    """Steps over places. Work is issued to the current stream, which must be that of `lanes.step`."""

    def __init__(
        self, decoder: Any, *, runtime: Runtime, selector: Selector, spec: BlockSpec, options: GpuOptions
    ) -> None:  # fmt: skip
        self.engine = make_engine(runtime.engine)
        check_engine(self.engine, host_dtype=options.host_dtype, copy_launch=options.copy_launch)
        self.runtime = attrs.evolve(runtime, engine=self.engine.name)
        self.decoder, self.selector, self.options, self.spec = decoder, selector, options, spec
        self.shape, self.device = decoder.shape, decoder.device
        self.tokens = self.shape.context if options.tokens is None else options.tokens
        self.plan = self.runtime.decode_plan(shape=self.shape, spec=spec, selector=selector)
        self._one_copy = options.copy_launch == "step" and bool(self.plan.lane(Lane.H2D))
        self.lanes = lanes_of(self.device)
        self.early = early_of(self.device, options.early)
        self._clock = clock_of(self.device) if options.timeline else None
        eager = Eager(self._pieces)
        self._replays: Replays = eager
        possible = isinstance(self.lanes, StreamLanes) and self._clock is None
        wanted = possible if options.graph is None else options.graph
        if wanted:
            if not isinstance(self.lanes, StreamLanes) or self._clock is not None:
                raise ConfigError(
                    f"graph=True needs a CUDA device (the model lies on {self.device}) and timeline=False; "
                    "leave one of them out"
                )
            self._replays = Captured(eager, self.lanes, self._captured_pieces if self._one_copy else None)
        self._open()
        self._draws: dict[bool, SampleScratch] = {}
        self._bound: dict[StepKey, DecodeStep] = {}
        self._last: StepKey | None = None
        self._kept: tuple[Sampling, torch.Tensor] | None = None  # of rows, until they have memory again
        self._sampled = [False] * options.places
        self._position: npt.NDArray[np.int32] | None = None  # what the device holds, where the host knows
        self._paged: dict[int, int] = {}  # by place, tokens that its own pages hold

    def _open(self) -> None:
        """Take the memory for all places. What can be refused is refused before: pinning it may take a minute."""
        if type(self.selector).bind_device is Selector.bind_device:
            raise ConfigError(f"selector {self.selector.name!r} has no GPU half (bind_device); it runs on a CPU only")
        self.capacity = self._capacity()
        with short_of_memory(self.capacity):
            self._take()

    def _take(self) -> None:
        self._slots = self.capacity.slots if self.runtime.offloads else 0
        self.tiers = GpuTiers(
            self.capacity, dtype=self.decoder.dtype, device=self.device, pinning=self.options.pinning,
            host_memory=self.options.host_memory,
        )
        self.rows = self.tiers.rows
        self._take_rest()

    def _take_rest(self) -> None:
        """What is small beside the tiers, and may be what does not fit any more."""
        places, shape, spec = self.options.places, self.shape, self.spec
        self.half = self.selector.bind_device(
            DeviceRoom(
                shape=shape, spec=spec, places=places, tokens=self.tokens, device=self.device,
                dtype=self.decoder.dtype, lead=self.runtime.lead(self.selector), tick=self.rows.tick,
                early=self.early,
            )
        )  # fmt: skip
        self._check_dense(spec)
        self._model = self.decoder.on_device(places, tokens=self.tokens, early=self.early)
        self.sampling = Sampling.greedy(places, self.device, self.rows.seed)
        self._attention = torch.zeros(
            places, shape.q_heads, shape.head_dim, dtype=self.decoder.dtype, device=self.device
        )  # fmt: skip
        self._drew = torch.zeros(places, dtype=torch.int64, device=self.device)
        self._attending = attend_scratch(
            places=places, q_heads=shape.q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
            blocks=spec.block_count(self.tokens) if self.half.takes_every_block else spec.budget, block=spec.block,
            dtype=self.decoder.dtype, device=self.device,
        )  # fmt: skip

    def _check_dense(self, spec: BlockSpec) -> None:
        if self.half.takes_every_block:
            check_slots_for(spec.block_count(self.tokens), self.selector, self.runtime, spec, self.tokens)

    def _capacity(self) -> CapacityPlan:
        """What will be taken; raises CapacityError where it does not fit, before anything is."""
        return session_plan(
            shape=self.shape, spec=self.spec, selector=self.selector, runtime=self.runtime, options=self.options,
            value_bytes=self.decoder.dtype.itemsize, forecast=self.decoder.has_forecast,
        )  # fmt: skip

    # Steps ----------------------------------------------------------------------------------------

    def _pieces(self, key: StepKey) -> tuple[Piece, ...]:
        step = self._bound[key] = DecodeStep(self._parts(key))
        kinds = self._selector_kinds()
        table = step.table(kinds)
        if self._clock is not None:
            table = self._clock.around(table)
        listed = self.engine.needs_host_list
        return pieces_of(self.plan, table, self.lanes, host_lists=listed, tell=step.tell if listed else None)

    def _captured_pieces(self, key: StepKey) -> tuple[Piece, ...]:
        """The step that was issued before, but for its copies."""
        step = self._bound[key]
        table = step.captured_table(self._selector_kinds())
        return pieces_of(self.plan, table, self.lanes, host_lists=False, gate=step.gate)

    def _selector_kinds(self) -> frozenset[str]:
        lead = self.runtime.lead(self.selector)
        return frozenset(
            kind
            for layer in range(self.shape.layers)
            for early in {0, lead}
            for kind in self.selector.operations(layer, Phase.DECODE, early)
        )

    def _parts(self, key: StepKey) -> StepParts:
        n, rows = key.places, self.rows.first(key.places)
        return StepParts(
            decoder=self._model.parts(rows.position),
            heads=[self._model.heads(layer) for layer in range(self.shape.layers)],
            tiers=[first_of_tier(tier, n) for tier in self.tiers.layers], rows=rows,
            sampling=self.sampling.at(slice(n)), nucleus=key.nucleus, drawing=self._drawing(key.nucleus),
            attention=self._attention[:n], sampled=self._drew[:n], scratch=self._attending, selector=self.half,
            engine=self.engine, spec=self.spec, policy=self.runtime.policy, counts=self.tiers.counts,
            every=self.half.takes_every_block, last=self._last_kinds(),
            lead=self.runtime.lead(self.selector), copy=self.options.copy_size(n), early=self.early,
            lists=self.tiers.lists if self._one_copy else None,
        )  # fmt: skip

    def _last_kinds(self) -> dict[tuple[int, int], str]:
        """Kind of the last operation that selects for each target during each source, as the plan has it."""
        own = self._selector_kinds()
        return {(op.layer, op.source): op.kind for op in self.plan if op.kind in own}

    def _drawing(self, nucleus: bool) -> SampleScratch:  # noqa: FBT001
        if nucleus not in self._draws:
            self._draws[nucleus] = sample_scratch(self.options.places, self.shape.vocab, self.device, nucleus=nucleus)
        return self._draws[nucleus]

    def run(
        self, bucket: int, lengths: Mapping[int, int], tokens: Mapping[int, int], steps: int,
        drawn: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Issue `steps` steps of the places in `lengths`; the others sit them out.

        lengths  by place, tokens in the cache
        tokens   by place, the token to decode, where it is not what was sampled last
        drawn    int64 [steps, places], written: what each step sampled, undefined where a place sat it out
        """
        position = np.full(self.options.places, -1, np.int32)
        position[list(lengths)] = list(lengths.values())
        if self._position is None or not np.array_equal(position, self._position):
            upload(position, self.rows.position)
        if tokens:
            room = torch.empty(2, len(tokens), dtype=torch.int64, device=self.device)
            self.rows.token.index_copy_(0, *upload(np.array([list(tokens), list(tokens.values())], np.int64), room))
        self._last = StepKey(bucket, any(self._sampled[place] for place in lengths))
        self._position = None
        for step in range(steps):
            self._replays.run(self._last)
            if drawn is not None:
                drawn[step].copy_(self.rows.token)
        self._position = np.where(position < 0, position, position + steps)

    def logits(self) -> torch.Tensor:
        """[bucket, vocab] of the last step; raises ConfigError before the first."""
        step = None if self._last is None else self._bound.get(self._last)
        if step is None or step.logits is None:
            raise ConfigError("session has not decoded yet; run a step first")
        return step.logits

    def facts(
        self, places: Sequence[int], active: npt.NDArray[np.bool_], lengths: npt.NDArray[np.int64]
    ) -> StepFacts:
        """Facts of the last step; see `counted_facts`."""
        return counted_facts(
            self.tiers.layers, places, active, lengths, spec=self.spec, slots=self._slots,
            resident=self.plan.resident_layers, takes_every_block=self.half.takes_every_block,
        )  # fmt: skip

    # Places ---------------------------------------------------------------------------------------

    def set_sampling(self, place: int, temperature: float, top_p: float, seed: int) -> None:
        """Sampling of the row in a place."""
        self.sampling.put(place, temperature, top_p, seed)
        self._sampled[place] = temperature > 0

    def sample_first(self, place: int, logits: torch.Tensor, position: int) -> None:
        """Draw the row's next token from the logits [vocab] of the token at `position`."""
        one, out = slice(place, place + 1), self.rows.token[place : place + 1]
        at = torch.full((1,), position, dtype=torch.int32, device=self.device)
        nucleus = self._sampled[place]
        draw(logits[None].float(), self.sampling.at(one), at, out, self._drawing(nucleus), nucleus=nucleus)

    def add(self, place: int) -> None:
        """An empty row."""
        self._forget(place)
        self.tiers.add(place)

    def retire(self, place: int) -> None:
        """Give a row's memory back."""
        self._forget(place)
        self.tiers.retire(place)

    def vacate(self, place: int) -> None:
        """Make a place free, whether a row lies in it or not."""
        if self.tiers.holds(place):
            self.retire(place)

    def fork(self, source: int, copy: int) -> None:
        """The row in `copy` starts as a copy of that in `source`."""
        self._forget(source, copy)
        self.tiers.fork(source, copy)
        self.half.place_forked(source, copy)
        self._same(source, copy)

    def move(self, source: int, target: int) -> None:
        """The row of `source` from now on lies in `target`; may be done again where it was interrupted."""
        self._forget(source, target)
        if self.tiers.holds(source):
            self.tiers.move(source, target)
        self.half.place_moved(source, target)
        self._same(source, target)

    def _same(self, source: int, target: int) -> None:
        self.sampling.move(source, target)
        self.rows.token[target] = self.rows.token[source]
        self._sampled[target] = self._sampled[source]

    def _forget(self, *places: int) -> None:
        """What the host knew of these places is no longer so."""
        self._position = None
        for place in places:
            self._paged.pop(place, None)

    def crop(self, place: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of a row."""
        self._forget(place)
        self.tiers.crop(place, tokens)
        self.half.place_cropped(place, tokens)

    def reserve(self, tokens: Mapping[int, int]) -> None:
        """Pages for rows, by place, to grow to so many tokens; CapacityError before anything is written."""
        wanted = {place: most for place, most in tokens.items() if most > self._paged.get(place, -1)}
        if not wanted:
            return
        self.tiers.reserve(wanted)
        page = self.options.page_blocks * self.spec.block
        # Pages are taken whole: until a page is full, or shared by a fork, there is nothing to ask for.
        self._paged |= {place: -(-most // page) * page for place, most in wanted.items()}

    def commit(self, tokens: Mapping[int, int]) -> None:
        """Say that rows, by place, hold so many tokens."""
        self.tiers.commit(tokens)

    def settle_row(self, place: int, tokens: int, *, stale_from: int) -> None:
        """Tokens from `stale_from` on were written behind the slots' back: drop those blocks, slot the tail."""
        self.tiers.refresh(place, tokens, stale_from=stale_from)

    def load(self, place: int, snapshot: RowSnapshot) -> None:
        """Fill an empty row."""
        self.reserve({place: snapshot.tokens})
        like = torch.empty(0, dtype=self.decoder.dtype, device=self.device)
        for layer in range(self.shape.layers):
            keys, values = (torch.from_numpy(kv[layer]).to(like) for kv in (snapshot.keys, snapshot.values))
            bias = None if snapshot.bias is None else torch.from_numpy(snapshot.bias[layer]).to(self.device)
            self.tiers.load(place, layer, keys, values, 0, bias)
        self.settle_row(place, snapshot.tokens, stale_from=0)
        self.commit({place: snapshot.tokens})

    def hand_over(self, place: int, bound: BoundSelector, row: int, tokens: int) -> None:
        """Let the selector's device half take over what its CPU half knows of a row."""
        self.half.adopt(place, bound, row, tokens, lambda layer: self.tiers.read(place, layer, 0, tokens)[0])

    # Life -----------------------------------------------------------------------------------------

    def check(self, spec: BlockSpec) -> None:
        """Raise ConfigError where a budget cannot be served."""
        self.runtime.check(self.selector, self.shape, spec)
        self._check_dense(spec)

    def reopen(self, spec: BlockSpec) -> None:
        """Take all memory anew, for another budget; every place is free then."""
        self.lanes.settle()
        self._replays.reset()
        self._bound.clear()
        self._last = None
        self._forget(*self._paged)
        self._kept = self._kept or (self.sampling.copy(), self.rows.token.clone())
        self.__dict__.pop("tiers", None)  # the old memory goes first; after a failure it is gone already
        self.spec = spec
        self.plan = self.runtime.decode_plan(shape=self.shape, spec=spec, selector=self.selector)
        self._open()
        self.sampling.set(self._kept[0])
        self.rows.token.copy_(self._kept[1])
        self._kept = None

    def timeline(self) -> Timeline | None:
        """When each operation of the last step ran; None unless the session records it."""
        return None if self._clock is None else self._clock.timeline()

    @property
    def used_bytes(self) -> dict[str, int]:
        """Bytes taken by tier."""
        return self.tiers.used_bytes

    def table(self) -> Mapping[str, Issue]:
        """What issues each kind of operation of the last step; ConfigError before the first. For measurements."""
        step = None if self._last is None else self._bound.get(self._last)
        if step is None:
            raise ConfigError("session has not decoded yet; run a step first")
        return step.table(self._selector_kinds())

    @property
    def captures(self) -> bool:
        """Whether steps are captured and replayed."""
        return isinstance(self._replays, Captured)

    def describe(self) -> dict[str, str]:
        """How steps run, for people."""
        size = self.options.copy_size(self.options.places)
        whole = "one CUDA graph a step" if isinstance(self._replays, Captured) else "every operation issued by the host"
        if isinstance(self._replays, Captured) and self.engine.needs_host_list:
            whole = (
                "CUDA graph segments, cut at each copy: the host must read each layer's list of misses in mid-step"
            )
        copy = f"{size.ctas} thread blocks, {size.in_flight_bytes // 1024} KiB in flight each, {size.source}"
        if self._one_copy and isinstance(self._replays, Captured):
            copy += ", one launch a step"
        return {
            "engine": self.engine.name, "steps": whole, "copy": copy, "policy": self.runtime.policy,
            "slots": str(self._slots), "host": self.options.host_dtype,
        }  # fmt: skip

    def close(self) -> None:
        """Wait for what runs and give the memory back."""
        self.lanes.settle()
        self._replays.close()
        self._bound.clear()
        self.__dict__.pop("tiers", None)
