"""Decode on a GPU: what each operation of a decode plan launches. Nothing here reads data or allocates.

Two operations of the plan may be one launch. Where the place of a token's K and V is known before the layer begins
(its diff ran a layer earlier, or the layer is resident), `project` rotates, adds the entry and stores K and V at
once, and `append` launches nothing; else `append` stores them after the diff. Where a selector's last operation is
nothing but the choice by scores, and a diff comes next, the diff makes the choice as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from sparda_core.device_view import DeviceView
from sparda_core.errors import PlanError
from sparda_core.kernels.append.gpu import append_tokens
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.attend.gpu import AttendScratch, attend_all, attend_pages, attend_slots
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.kernels.gather.gpu_layers import await_layer
from sparda_core.kernels.quantise.gpu import quantise_closed
from sparda_core.kernels.sample.gpu import SampleScratch
from sparda_core.kernels.step.gpu import advance, begin_step
from sparda_core.kernels.tables import ARRIVED, LayerLists
from sparda_core.plan import Kind, Op
from sparda_core.runtimes.gpu.engines import Engine, HostListEngine
from sparda_core.runtimes.gpu.executor import Issue
from sparda_core.runtimes.gpu.options import CopySize
from sparda_core.runtimes.gpu.sampling import Sampling, draw
from sparda_core.runtimes.gpu.tier import LayerTier, RowState
from sparda_core.selector import DeviceSelector
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True, eq=False)
class StepParts:
    """Everything that a step of some places works on; all tensors are views of these places.

    decoder    parts of the model on fixed buffers: DeviceParts of models/device_decoder.py
    heads      by layer, how its fused product lies
    tiers      by layer
    attention  [B, Hq, D], what a layer attended to; one for all layers, since they run one by one
    sampled    int64 [B]
    counts     int32 [L_off], lengths of the lists of misses
    last       kind of a selector's last operation, by (target, source)
    every      whether attention takes every block of a row, wherever the layer is resident
    lead       layers between selecting and attending
    nucleus    whether any row samples
    copy       size of the copy kernel
    early      how early the small kernels start, see kernels/early.py
    lists      all layers' lists, where captured steps copy by one launch
    """

    decoder: Any
    heads: Sequence[FusedHeads]
    tiers: Sequence[LayerTier]
    rows: RowState
    sampling: Sampling
    nucleus: bool
    drawing: SampleScratch
    attention: torch.Tensor
    sampled: torch.Tensor
    scratch: AttendScratch
    selector: DeviceSelector
    engine: Engine
    spec: BlockSpec
    policy: str
    counts: torch.Tensor
    last: Mapping[tuple[int, int], str]
    every: bool
    lead: int
    copy: CopySize
    early: int
    lists: LayerLists | None = None


class DecodeStep:
    """Bindings of the decode plans. What they are given is resolved once, so that a step only launches."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._x: torch.Tensor | None = None
        self._views: dict[tuple[int, int], DeviceView] = {}
        self._stores = [self._store(layer) for layer in range(len(parts.tiers))]
        self.logits: torch.Tensor | None = None

    def table(self, selector_kinds: frozenset[str]) -> Mapping[str, Issue]:
        """Kind -> what issues it, for a plan whose selector runs `selector_kinds`."""
        table: dict[str, Issue] = {
            Kind.EMBED: self._embed, Kind.PROJECT: self._project, Kind.ENTRIES: self._entries, Kind.DIFF: self._diff,
            Kind.FETCH: self._fetch, Kind.APPEND: self._append, Kind.ATTEND: self._attend, Kind.OUTPUT: self._output,
            Kind.MLP: self._mlp, Kind.HEAD: self._head,
        }  # fmt: skip
        return table | dict.fromkeys(selector_kinds, self._select)

    def captured_table(self, selector_kinds: frozenset[str]) -> Mapping[str, Issue]:
        """The same, where the first FETCH issues the copy of all layers. Loads what the other table does not."""
        self._fetch_all(load=True)
        return {**self.table(selector_kinds), Kind.FETCH: lambda op: self._fetch_all()}

    def gate(self, op: Op) -> None:
        """Hold the compute lane until the blocks of a FETCH are there."""
        assert self._parts.lists is not None
        await_layer(self._parts.lists, self._index(op.layer), ctas=self._parts.copy.ctas)

    def _fetch_all(self, *, load: bool = False) -> None:
        parts = self._parts
        assert parts.lists is not None
        tier = parts.tiers[-1]  # any offloaded layer: all their blocks lie in one array
        assert tier.host is not None
        assert tier.diff is not None
        parts.engine.fetch_all(tier.host, parts.lists, parts.copy, programs=tier.diff.misses.numel(), load=load)
        if load:
            await_layer(parts.lists, 0, ctas=0)

    def _index(self, layer: int) -> int:
        """Where an offloaded layer lies in the lists."""
        assert self._parts.lists is not None
        return layer - (len(self._parts.tiers) - len(self._parts.lists.signals))

    def _arrived(self, layer: int) -> torch.Tensor | None:
        """What the diff of a layer counts up when its list is whole."""
        lists = self._parts.lists
        return None if lists is None else lists.signals[self._index(layer), ARRIVED : ARRIVED + 1]

    def _fused(self, layer: int) -> bool:
        """Whether K and V can be stored together with the rotation; see the module."""
        return self._parts.lead > 0 or self._parts.tiers[layer].device is not None

    def _store(self, layer: int) -> Store:
        tier = self._parts.tiers[layer]
        if tier.device is not None:
            return Store(device=tier.device)
        assert tier.slots is not None
        assert tier.diff is not None
        assert tier.host is not None
        narrow = tier.host.scales is not None
        return Store(slots=tier.slots.array, tail=tier.diff.tail, host=None if narrow else tier.host)

    def _view(self, target: int, source: int) -> DeviceView:
        """What a selector may see of `source` when it selects for `target`; made once."""
        if (target, source) not in self._views:
            self._views[target, source] = self._new_view(target, source)
        return self._views[target, source]

    def _new_view(self, target: int, source: int) -> DeviceView:
        parts, own = self._parts, target == source
        tier, forecast = parts.tiers[target], None
        if parts.heads[source].has_own and own:
            forecast = parts.decoder.forecast_own
        elif parts.heads[source].has_next and target == source + parts.lead:
            forecast = parts.decoder.forecast_next
        if self._x is None:
            raise PlanError(f"layer {target} selects before layer {source} projects: no plan of ours does")
        return DeviceView(
            layer=target, source=source, unseen=0 if own else 1, spec=parts.spec, position=parts.rows.position,
            x=self._x, query=parts.decoder.query if own else None, forecast=forecast,
            key=parts.decoder.key if own else None, entries=tier.entries, query_of=parts.decoder.query_of,
            scores=tier.scores, choice=tier.choice, bias=tier.means,
        )  # fmt: skip

    def _embed(self, op: Op) -> None:
        lists = self._parts.lists
        begin_step(self._parts.rows.tick, self._parts.counts if lists is None else lists.signals.view(-1))
        self._parts.decoder.embed(self._parts.rows.token)

    def _project(self, op: Op) -> None:
        layer, tier = op.layer, self._parts.tiers[op.layer]
        self._x, _ = self._parts.decoder.project(layer)
        self._parts.decoder.rotate_append(
            layer, entries=tier.entries, ring=tier.ring, spec=self._parts.spec,
            store=self._stores[layer] if self._fused(layer) else None,
        )  # fmt: skip
        if tier.bias is not None:
            assert tier.means is not None
            self._parts.decoder.keep_bias(layer, tokens=tier.bias, means=tier.means, spec=self._parts.spec)

    def _entries(self, op: Op) -> None:
        self._parts.selector.observe(self._view(op.layer, op.layer))

    def _together(self, layer: int) -> bool:
        """Whether choice and diff are one launch; see the module."""
        return self._parts.selector.chooses_by_scores and self._parts.tiers[layer].diff is not None

    def _select(self, op: Op) -> None:
        if op.kind == self._parts.last[op.layer, op.source] and self._together(op.layer):
            return
        self._parts.selector.run(op.kind, self._view(op.layer, op.source))

    def _diff(self, op: Op) -> None:
        parts, tier = self._parts, self._parts.tiers[op.layer]
        assert tier.slots is not None
        assert tier.diff is not None
        assert tier.host is not None
        given, arrived = (tier.slots, tier.host, parts.policy), self._arrived(op.layer)
        if self._together(op.layer):
            choose_and_diff(
                tier.scores, parts.rows.position, parts.spec, tier.choice, *given, parts.rows.tick, tier.diff, arrived,
                early=parts.early,
            )  # fmt: skip
            return
        diff_slots(
            tier.choice, parts.rows.position, *given, tier.scores, parts.rows.tick, tier.diff, arrived,
            early=parts.early,
        )  # fmt: skip

    def _fetch(self, op: Op) -> None:
        self._parts.engine.fetch(self._parts.tiers[op.layer], self._parts.copy)

    def tell(self, op: Op) -> None:
        """Write the list of a FETCH to the host's memory, for an engine that needs it there."""
        engine = self._parts.engine
        assert isinstance(engine, HostListEngine)
        engine.tell(self._parts.tiers[op.layer], early=self._parts.early)

    def _append(self, op: Op) -> None:
        parts, tier = self._parts, self._parts.tiers[op.layer]
        if not self._fused(op.layer):
            append_tokens(
                parts.decoder.key, parts.decoder.value, parts.rows.position, self._stores[op.layer], early=parts.early
            )
        if tier.host is not None and tier.host.scales is not None:
            assert tier.slots is not None
            assert tier.diff is not None
            quantise_closed(
                tier.slots.array, tier.diff.tail, parts.rows.position, tier.host, parts.spec, early=parts.early
            )

    def _attend(self, op: Op) -> None:
        parts, tier, query = self._parts, self._parts.tiers[op.layer], self._parts.decoder.query
        given = (parts.rows.position, parts.spec, parts.attention, parts.scratch)
        if tier.device is None:
            assert tier.slots is not None
            assert tier.diff is not None
            # Not early: it comes behind a wait for the copies.
            attend_slots(
                query, tier.slots.array, tier.diff.physical, tier.choice.counts, *given, bias=tier.bias,
                logical=tier.choice.blocks,
            )  # fmt: skip
        elif parts.every:
            attend_all(query, tier.device, *given, early=parts.early, bias=tier.bias)
        else:
            attend_pages(query, tier.device, tier.choice, *given, early=parts.early, bias=tier.bias)

    def _output(self, op: Op) -> None:
        self._parts.decoder.output(op.layer, self._parts.attention)

    def _mlp(self, op: Op) -> None:
        self._parts.decoder.mlp(op.layer)

    def _head(self, op: Op) -> None:
        parts = self._parts
        self.logits = parts.decoder.head()
        draw(
            self.logits, parts.sampling, parts.rows.position, parts.sampled, parts.drawing, nucleus=parts.nucleus,
            early=parts.early,
        )  # fmt: skip
        advance(parts.rows.position, parts.rows.token, parts.sampled, early=parts.early)
