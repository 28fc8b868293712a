"""Kernels in turn, as a decode step has them: one operation of all layers after another, whole layers, whole steps.

A kernel that follows another one takes longer than one that follows itself, whose code and addresses are still at
hand; kernels that start early, as a step is shipped, take some of that back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_calibration.beside import Subject
from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.scenes import Scene
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_calibration.small_kernels import CHANNELS, case_of, entries_of, store_of
from sparda_core.bench.gpu_clock import Launch, between, graph_of
from sparda_core.facts import steady_facts
from sparda_core.kernels.early import early_of
from sparda_core.kernels.linear import work as linear
from sparda_core.kernels.sample.gpu import greedy, sample_scratch
from sparda_core.kernels.score_proxy.gpu import project_keys, project_query
from sparda_core.kernels.step.gpu import advance, begin_step
from sparda_core.models.device_decoder import DeviceDecoder
from sparda_core.models.synthetic import synthetic_model
from sparda_core.plan import Op
from sparda_core.selectors.infinigen import PROXY, InfiniGen
from sparda_core.work import Work, WorkContext

Row = dict[str, Any]
#: One part of a layer, issued.
Part = Callable[[int], None]
#: Kernels that a layer's part launches (sparda_core/models/device_decoder.py): norm, product, rotary with append;
#: product; norm, product, gate, product; InfiniGen's product, rotary, and its channels of queries and of keys.
LAUNCHES = {"project": 3, "output": 1, "mlp": 4, "proxy": 4}
#: What a layer is made of, selection and attention left out.
LAYER = ("project", "output", "mlp")
#: Kernels at both ends of a step: what counts and clears, embedding; norm, product, logits widened, the best of them
#: in two, and one that goes on to the next token.
BEGIN, HEAD = 2, 6
#: What a layer launches beside these in a step of the Forecast whose layers are resident: scoring, choice, attention.
_SELECTED = ("score forecast", "choose", "attend pages")
#: Steps in a row whose beginnings are told from one graph of as many.
_STEPS = 8


def measure(sizes: Sizes) -> list[Row]:
    """Rows of (what, rows, launches, microseconds): of one layer where `what` is a part of one, else of one of it.

    What is one operation of a plan says the work that it is priced by, too.
    "layer" is project, output and mlp in turn; "whole layer" has scoring, choice and attention between them; "step
    to step" what the launch of a graph of a step adds to its kernels.
    """
    shape = attrs.evolve(sizes.shape, layers=sizes.layers, tied_embeddings=True)
    model = synthetic_model(shape, device=device_of(), dtype=getattr(torch, sizes.dtype), seed=0)
    most = max(*sizes.in_turn, *sizes.whole)
    decoder = DeviceDecoder(model.decoder, most, tokens=sizes.context, early=early_of(device_of(), None))
    rows: list[Row] = []
    for batch in sizes.in_turn:
        rows += Turn(sizes, decoder, batch).rows()
    for batch in sizes.whole:
        rows.append(Turn(sizes, decoder, batch).whole())
    return [*rows, Turn(sizes, decoder, min(sizes.whole)).steps()]


def works(sizes: Sizes, rows: int) -> dict[str, Work]:
    """What a plan says of the operations that are timed here, without Forecasts."""
    shape = attrs.evolve(sizes.shape, layers=3)
    facts = steady_facts(shape=shape, spec=sizes.spec, batch=rows, context=sizes.context, churn=0.0)
    context = WorkContext(shape=shape, spec=sizes.spec)
    of = {"project": linear.project_work, "output": linear.output_work, "mlp": linear.mlp_work,
          "head": linear.head_work, "begin": linear.embed_work}  # fmt: skip
    proxy = InfiniGen(channels=min(CHANNELS, shape.head_dim)).work(Op(kind=PROXY, layer=1, source=0), facts, context)
    return {"proxy": proxy, **{what: work(Op(kind=what, layer=1), facts, context) for what, work in of.items()}}


class Turn:
    """Parts of a step of so many rows."""

    def __init__(self, sizes: Sizes, decoder: DeviceDecoder, batch: int) -> None:
        self._sizes, self._decoder, self._batch = sizes, decoder, batch
        self._scene = Scene(sizes, batch)
        self._parts, self._early = decoder.parts(self._scene.position), decoder.early
        self._entries, self._store = entries_of(self._scene), store_of(self._scene)
        # Positions that go on with every step are none of those that the other parts read.
        self._next = self._scene.ints(batch)
        self._token, self._sampled = torch.zeros(2, batch, dtype=torch.int64, device=self._scene.device)
        self._drawing = sample_scratch(batch, decoder.shape.vocab, self._scene.device, nucleus=False)
        self._tick, self._counts = self._scene.ints(1), self._scene.ints(sizes.layers)

    def rows(self) -> list[Row]:
        """Each part alone, for all layers; a layer without selection and attention; both ends of a step."""
        parts = {"project": self._project, "output": self._output, "mlp": self._mlp, "proxy": self._proxy()}
        found = [self._row(name, [part], LAUNCHES[name]) for name, part in parts.items()]
        layer = [parts[name] for name in LAYER]
        ends = {"head": (self._head, HEAD), "begin": (self._begin, BEGIN)}
        found += [self._times(what, [end] * self._sizes.layers, count) for what, (end, count) in ends.items()]
        told = works(self._sizes, self._batch)
        found = [{**row, "work": attrs.asdict(told[row["what"]])} for row in found]
        return [*found, self._row("layer", layer, sum(LAUNCHES[name] for name in LAYER))]

    def whole(self) -> Row:
        """A layer of a step that chooses by Forecasts over what lies on the device."""
        cases = [case_of(name, self._sizes, self._batch) for name in _SELECTED]

        def select(layer: int) -> None:
            for case in cases:
                call: Callable[..., object] = case.launches[layer % len(case.launches)]
                call(early=self._early)

        launches = sum(LAUNCHES[name] for name in LAYER) + sum(int(case.work.launches) for case in cases)
        return self._row("whole layer", [self._project, select, self._output, self._mlp], launches)

    def steps(self) -> Row:
        """What every graph of a step takes beyond its kernels."""
        layers = [functools.partial(part, layer) for layer in self._layers for part in self._layer]
        step: list[Launch] = [self._begin, *layers, self._head]
        one, many = graph_of(step), graph_of(step * _STEPS)

        def row() -> None:
            for _ in range(_STEPS):
                one.replay()

        for run in (row, many.replay):
            run()
        us = [max(0.0, between(row) - between(many.replay)) / (_STEPS - 1) for _ in range(self._sizes.replays)]
        return {"what": "step to step", "rows": self._batch, "launches": 1, "us": us}

    @property
    def _layers(self) -> range:
        return range(self._sizes.layers)

    @property
    def _layer(self) -> tuple[Part, ...]:
        return self._project, self._output, self._mlp

    def _row(self, what: str, parts: Sequence[Part], launches: int) -> Row:
        """Of a layer: the parts in turn, layer after layer."""
        return self._times(what, [functools.partial(_in_turn, parts, layer) for layer in self._layers], launches)

    def _times(self, what: str, calls: Sequence[Launch], launches: int) -> Row:
        first = functools.partial(begin_step, self._tick, self._counts)
        subject = Subject.of(what, self._batch, calls, self._sizes.beside_us / 2, first=[first])
        return {"what": what, "rows": self._batch, "launches": launches, "us": subject.alone_us(self._sizes.repeats)}

    def _project(self, layer: int) -> None:
        self._parts.project(layer)
        self._parts.rotate_append(layer, **self._entries, spec=self._sizes.spec, store=self._store)

    def _output(self, layer: int) -> None:
        self._parts.output(layer, self._parts.query)

    def _mlp(self, layer: int) -> None:
        self._parts.mlp(layer)

    def _proxy(self) -> Part:
        """As `infinigen` makes its proxy query, and keeps a new key's channels."""
        scene, shape, parts = self._scene, self._decoder.shape, self._parts
        x = scene.random(self._batch, shape.hidden)
        projection = scene.random(*scene.pairs, shape.head_dim, self._channels)
        partial = torch.empty(*scene.pairs, self._sizes.context, self._channels, dtype=scene.dtype, device=scene.device)
        skewed = torch.empty(*scene.pairs, self._channels, device=scene.device)

        def proxy(layer: int) -> None:
            query = parts.query_of(layer, x)
            project_query(query, projection, scene.position, skewed, early=self._early)
            project_keys(parts.key, projection, scene.position, partial, early=self._early)

        return proxy

    @property
    def _channels(self) -> int:
        return min(CHANNELS, self._decoder.shape.head_dim)

    def _begin(self) -> None:
        begin_step(self._tick, self._counts)
        self._parts.embed(self._token)

    def _head(self) -> None:
        greedy(self._parts.head(), self._sampled, self._drawing, early=self._early)
        advance(self._next, self._token, self._sampled, early=self._early)


def _in_turn(parts: Sequence[Part], layer: int) -> None:
    for part in parts:
        part(layer)
