"""Rotary with append, and the small kernels of a decode step: are they right, and how long do they take?

python -m benchmarks.gpu.append [--json FILE] [--no-model]

Without a GPU the checks run by Triton's interpreter at a tiny size, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch

from benchmarks.gpu.keep import keep
from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.kernels.append import gpu, reference  # isort: skip
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.early import early_of
from sparda_core.kernels.gate import reference as gate_reference
from sparda_core.kernels.gate.gpu import silu_gate
from sparda_core.kernels.norm import reference as norm_reference
from sparda_core.kernels.norm.gpu import rms_norm
from sparda_core.kernels.sample import gpu as sample
from sparda_core.kernels.sample import reference as sample_reference
from sparda_core.kernels.step.gpu import advance, begin_step, embed_tokens
from sparda_core.kernels.tables import Paged
from sparda_core.models.device_decoder import DeviceDecoder, DeviceParts
from sparda_core.models.rotary import RotaryTable
from sparda_core.models.synthetic import synthetic_model
from sparda_core.models.tiny import TINY_SHAPE
from sparda_core.shapes import BlockSpec, ModelShape, named_shape

GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if GPU else torch.float32
SHAPE = named_shape("minicpm4.1-8b") if GPU else TINY_SHAPE
SPEC = BlockSpec(sink=1, local=32, budget=96) if GPU else BlockSpec(block=16, window=8, stride=4, local=1, budget=4)
TOKENS = 131072 if GPU else 64
#: Device memory, bytes a second; what a launch in a graph costs when the next waits for it, seconds.
MEMORY, LAUNCH = 4.2e12, 1.8e-6
LIMIT = 1e-2 if GPU else 1e-5
#: Sets of tensors that launches of one graph take in turn.
SETS = 8


@attrs.define
class Case:
    """Tensors of one layer's append for B places; the last blocks of every row lie in pages of two blocks."""

    batch: int
    heads: FusedHeads
    tables: RotaryTable
    tensors: dict[str, torch.Tensor]
    proj: torch.Tensor
    position: torch.Tensor
    pages: Paged
    slots: torch.Tensor
    tail: torch.Tensor
    host: Paged

    def store(self, kind: str) -> Store | None:
        """A resident layer's pages, an offloaded layer's slots written through, or nothing."""
        if kind == "pages":
            return Store(device=self.pages)
        return Store(slots=self.slots, tail=self.tail, host=self.host) if kind == "slots" else None

    def rotate_append(self, kind: str) -> None:
        """One launch."""
        gpu.rotate_append(
            self.proj, heads=self.heads, cos=self.tables.cos, sin=self.tables.sin, position=self.position, spec=SPEC,
            store=self.store(kind), **self.tensors,
        )  # fmt: skip


def case(batch: int, tables: RotaryTable, seed: int = 0) -> Case:
    """Random values; positions ragged over the table, one place inactive where there are three."""
    stream = torch.Generator().manual_seed(seed)
    q, kv, size = SHAPE.q_heads, SHAPE.kv_heads, SHAPE.head_dim
    heads = FusedHeads(q=q, kv=kv, has_next=True)
    position = torch.randint(SPEC.window, tables.length, (batch,), generator=stream).int()
    position[0] = tables.length - 1  # the last token of a block, which completes an entry
    if batch > 2:
        position[1] = -1

    def room(*shape: int) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=DTYPE, device=DEVICE)

    def pages(*, pinned: bool) -> Paged:
        # Only the page that a row writes is there: tables are as wide as the context, the array is not.
        table = torch.full((batch, kv, tables.length // SPEC.block // 2), -1, dtype=torch.int32)
        for row, here in enumerate(position.tolist()):
            table[row, :, max(0, here) // SPEC.block // 2] = torch.arange(row * kv, (row + 1) * kv).int()
        array = torch.full((batch * kv * 2, 2, SPEC.block, size), torch.nan, dtype=DTYPE)
        array = array.pin_memory() if pinned and GPU else array if pinned else array.to(DEVICE)
        return Paged(array=array, table=table.to(DEVICE), page_blocks=2)

    tensors = {name: room(batch, kv, size) for name in ("key", "value", "forecast_next", "forecast_own")}
    tensors |= {"query": room(batch, q, size), "entries": room(batch, kv, SPEC.entry_count(tables.length), size)}
    ring = torch.randn(batch, kv, SPEC.window, size, generator=stream).to(DEVICE, DTYPE)
    return Case(
        batch=batch, heads=heads, tables=tables, tensors=tensors | {"ring": ring},
        proj=torch.randn(batch, heads.total * size, generator=stream).to(DEVICE, DTYPE), position=position.to(DEVICE),
        pages=pages(pinned=False), slots=room(batch * kv, 2, SPEC.block, size),
        tail=torch.arange(batch * kv, dtype=torch.int32, device=DEVICE).view(batch, kv), host=pages(pinned=True),
    )  # fmt: skip


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative, by norm; infinite where one is NaN and the other is not."""
    got, want = got.detach().cpu().double(), want.cpu().double()
    if not torch.equal(got.isnan(), want.isnan()):
        return float("inf")
    return float((got.nan_to_num() - want.nan_to_num()).norm() / want.nan_to_num().norm().clamp_min(1e-12))


def check_append(tables: RotaryTable) -> Iterator[tuple[str, float]]:
    """Name and error of every output of the append kernels, with each kind of store."""
    for kind in ("pages", "slots"):
        one = case(4, tables, seed=1)
        where, size = one.position.cpu(), SHAPE.head_dim
        ring, entries = one.tensors["ring"].cpu().clone(), one.tensors["entries"].cpu().double()
        one.rotate_append(kind)
        cos, sin = tables.cos.cpu().double(), tables.sin.cpu().double()
        turned = reference.rotate_heads(one.proj.cpu(), heads=one.heads, cos=cos, sin=sin, position=where)
        names, kv = ("query", "key", "forecast_next", "value"), one.heads.kv
        for name, want in zip(names, torch.split(turned, [one.heads.q, kv, kv, kv], 1), strict=True):
            yield f"{kind} {name}", error(one.tensors[name], want)
        key, value = one.tensors["key"].cpu(), one.tensors["value"].cpu()
        reference.keep_keys(key, where, entries, ring, SPEC)
        yield f"{kind} ring", error(one.tensors["ring"], ring)
        yield f"{kind} entries", error(one.tensors["entries"], entries)
        for name, array, table in (
            ("device", one.pages.array, one.pages) if kind == "pages" else ("device", one.slots, None),
            *([("host", one.host.array, one.host)] if kind == "slots" else []),
        ):
            want_array = torch.full((one.batch * kv * 2, 2, SPEC.block, size), torch.nan, dtype=DTYPE)[: len(array)]
            want_store = Store(slots=want_array, tail=one.tail.cpu()) if table is None else Store(
                device=attrs.evolve(table, array=want_array, table=table.table.cpu())
            )
            reference.store_tokens(key, value, where, want_store)
            yield f"{kind} {name} store", error(array, want_array)
        apart = case(4, tables, seed=1)
        store = apart.store(kind)
        assert store is not None
        gpu.append_tokens(one.tensors["key"], one.tensors["value"], one.position, store)
        yield f"{kind} append apart", error(apart.slots, one.slots) + error(apart.pages.array, one.pages.array)


def check_small() -> Iterator[tuple[str, float]]:
    """The same of norm, gate, greedy and nucleus sampling."""
    x = torch.randn(3, SHAPE.hidden, device=DEVICE, dtype=DTYPE)
    weight, out = torch.randn_like(x[0]), torch.empty_like(x)
    rms_norm(x, weight, out, eps=1e-5)
    yield "norm", error(out, norm_reference.rms_norm(x.double(), weight.double(), eps=1e-5))
    both = torch.randn(3, 2 * SHAPE.ffn, device=DEVICE, dtype=DTYPE)
    gated = torch.empty(3, SHAPE.ffn, device=DEVICE, dtype=DTYPE)
    silu_gate(both, gated)
    yield "gate", error(gated, gate_reference.silu_gate(both.double()))
    logits = torch.randn(3, SHAPE.vocab, device=DEVICE).round(decimals=1) * 3
    scratch = sample.sample_scratch(3, SHAPE.vocab, DEVICE, nucleus=True)
    token = torch.empty(3, dtype=torch.int64, device=DEVICE)
    sample.greedy(logits, token, scratch)
    yield "greedy", error(token, sample_reference.greedy(logits.cpu()))
    rows = sampling_rows(3)
    sample.sample_tokens(logits, out=token, scratch=scratch, **rows)
    draws = zip(rows["seed"].tolist(), rows["position"].tolist(), strict=True)
    draw = torch.tensor([sample_reference.draw(*one) for one in draws])
    options = rows["temperature"].cpu(), rows["top_p"].cpu()
    near = [sample_reference.nucleus(logits.cpu(), draw * (1 + by), *options) for by in (0, -1e-4, 1e-4)]
    found = all(t in {int(one[row]) for one in near} for row, t in enumerate(token.tolist()))
    yield "nucleus", 0.0 if found else float("inf")


def check_decoder() -> Iterator[tuple[str, float]]:
    """One token through the tiny model by both decoders, attention left out."""
    model = synthetic_model(TINY_SHAPE, device=DEVICE, dtype=DTYPE, seed=1).decoder
    where = torch.tensor([3, 0, 9], device=DEVICE)
    parts = DeviceDecoder(model, 4, tokens=16).parts(where.int())
    token = torch.tensor([5, 6, 7], device=DEVICE)
    x = model.embed(token[:, None])
    parts.embed(token)
    for layer in range(TINY_SHAPE.layers):
        query = model.project(layer, x, where[:, None]).q
        x = model.mlp(layer, model.output(layer, x, query))
        parts.project(layer)
        gpu.rotate(
            parts.project(layer)[1][:, : TINY_SHAPE.q_heads * TINY_SHAPE.head_dim], cos=model.rotary.cos,
            sin=model.rotary.sin, position=parts.position, query=parts.query,
        )  # fmt: skip
        parts.output(layer, parts.query)
        parts.mlp(layer)
    yield "decoder", error(parts.head(), model.head(x)[:, 0]) / (4 if GPU else 1)


def sampling_rows(batch: int) -> dict[str, torch.Tensor]:
    """Positions, seeds, temperatures and top_p of a batch."""
    return {
        "position": torch.arange(5, 5 + batch, dtype=torch.int32, device=DEVICE),
        "seed": torch.arange(batch, device=DEVICE) * 2**33 + 1,
        "temperature": torch.full((batch,), 0.8, device=DEVICE),
        "top_p": torch.full((batch,), 0.95, device=DEVICE),
    }


def timed(launches: Sequence[Callable[[], None]], replays: int = 10) -> float:
    """Seconds a launch: all of them in one graph, the median of five runs of `replays` replays."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    samples = []
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(replays):
            graph.replay()
        last.record()
        last.synchronize()
        samples.append(first.elapsed_time(last) * 1e-3 / replays / len(launches))
    return statistics.median(samples)


def repeated(make: Callable[[int], Callable[[], None]], times: int = 8) -> float:
    """Seconds of one launch over SETS sets of tensors in turn."""
    launches = [make(i) for i in range(SETS)]
    return timed([launch for _ in range(times) for launch in launches])


def append_rows(batch: int, tables: RotaryTable) -> Iterator[tuple[str, float, float]]:
    """Kernel, bytes, seconds."""
    cases = [case(batch, tables, seed) for seed in range(SETS)]
    line = cases[0].heads.total * SHAPE.head_dim * 2
    kv = SHAPE.kv_heads * SHAPE.head_dim * 2
    turned = batch * (2 * line + SHAPE.head_dim * 4 + kv)
    for kind, extra in (("none", 0), ("pages", 2 * kv), ("slots", 2 * kv)):
        name = {"none": "rotate, ring", "pages": "rotate_append, pages", "slots": "rotate_append, slots + host"}[kind]
        yield name, turned + batch * extra, repeated(lambda i, kind=kind: lambda: cases[i].rotate_append(kind))

    def apart(i: int) -> Callable[[], None]:
        one, store = cases[i], cases[i].store("slots")
        assert store is not None
        return lambda: gpu.append_tokens(one.tensors["key"], one.tensors["value"], one.position, store)

    yield "append_tokens, slots + host", batch * 4 * kv, repeated(apart)


def small_rows(batch: int) -> Iterator[tuple[str, float, float]]:
    """Kernel, bytes, seconds."""
    hidden, ffn, vocab = SHAPE.hidden, SHAPE.ffn, SHAPE.vocab
    xs = [torch.randn(2, batch, hidden, device=DEVICE, dtype=DTYPE) for _ in range(SETS)]
    weight = torch.ones(hidden, device=DEVICE, dtype=DTYPE)
    norm = repeated(lambda i: lambda: rms_norm(xs[i][0], weight, xs[i][1], eps=1e-5))
    yield "norm", 2 * hidden * (2 * batch + 1), norm
    wide = [torch.randn(batch, 3 * ffn, device=DEVICE, dtype=DTYPE) for _ in range(SETS)]
    gate = repeated(lambda i: lambda: silu_gate(wide[i][:, : 2 * ffn], wide[i][:, 2 * ffn :]))
    yield "gate", 2 * 3 * ffn * batch, gate
    rows = sampling_rows(batch)
    table = torch.randn(4096, hidden, device=DEVICE, dtype=DTYPE)
    token = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    embed = repeated(lambda i: lambda: embed_tokens(token, rows["position"], table, xs[i][0]))
    yield "embed", 4 * hidden * batch, embed
    tick = torch.zeros(1 + SHAPE.layers, dtype=torch.int32, device=DEVICE)
    yield "begin_step", 4 * 34, repeated(lambda i: lambda: begin_step(tick[:1], tick[1:]))
    position = rows["position"].clone()
    yield "advance", 24 * batch, repeated(lambda i: lambda: advance(position, token, token))
    logits = [torch.randn(batch, vocab, device=DEVICE) for _ in range(2)]
    scratch = sample.sample_scratch(batch, vocab, DEVICE, nucleus=True)
    greedy = repeated(lambda i: lambda: sample.greedy(logits[i % 2], token, scratch), times=2)
    yield "greedy (two launches)", 4 * vocab * batch, greedy
    nucleus = timed([lambda: sample.sample_tokens(logits[0], out=token, scratch=scratch, **rows)] * 2)
    yield "nucleus (sort and three)", 4 * vocab * batch, nucleus


def model_rows(shape: ModelShape, batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A step of the decoder without attention and selection, small kernels early or not; its products alone."""
    decoder = synthetic_model(shape, device=DEVICE, dtype=DTYPE).decoder
    model = DeviceDecoder(decoder, max(batches), tokens=TOKENS)
    early = DeviceDecoder(decoder, max(batches), tokens=TOKENS, early=early_of(DEVICE, None))
    products = [decoder.layer_weights(layer) for layer in range(shape.layers)]
    weights = sum(w.numel() for one in products for w in (one.fused, one.output, one.gate_up, one.down))
    floor = 2 * (weights + shape.vocab * shape.hidden) / MEMORY
    for batch in batches:
        one, token = case(batch, decoder.rotary), torch.zeros(batch, dtype=torch.int64, device=DEVICE)
        rest = {"entries": one.tensors["entries"], "ring": one.tensors["ring"], "spec": SPEC, "store": Store(
            slots=one.slots, tail=one.tail, host=one.host,
        )}  # fmt: skip

        def step(parts: DeviceParts, rest: Any = rest, token: torch.Tensor = token) -> None:
            parts.embed(token)
            for layer in range(shape.layers):
                parts.project(layer)
                parts.rotate_append(layer, **rest)
                parts.output(layer, parts.query)
                parts.mlp(layer)
            parts.head()

        def alone(batch: int = batch) -> None:
            norm, query = model.view("x_norm", batch), model.view("query", batch).flatten(1)
            for w in products:
                torch.mm(norm, w.fused.t(), out=model.view("proj", batch, len(w.fused)))
                model.view("x", batch).addmm_(query, w.output.t())
                torch.mm(norm, w.gate_up.t(), out=model.view("gate_up", batch))
                model.view("x", batch).addmm_(model.view("gated", batch), w.down.t())
            torch.mm(norm, decoder.table_weights[1].t(), out=model.view("head", batch))

        plain, ahead = model.parts(one.position), early.parts(one.position)
        row = {"batch": batch, "step_s": timed([partial(step, plain)]), "early_step_s": timed([partial(step, ahead)])}
        same = torch.equal(plain.logits, ahead.logits)
        yield row | {"products_s": timed([alone]), "weights_floor_s": floor, "early_is_same": same}


def main() -> None:
    """Check; then, on a GPU, time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--no-model", action="store_true", help="leave out the whole decoder (16 GB of weights)")
    args = parser.parse_args()
    tables = RotaryTable(head_dim=SHAPE.head_dim, theta=1e4, length=TOKENS, dtype=torch.float32, device=DEVICE)
    checks = dict([*check_append(tables), *check_small(), *check_decoder()])
    print("checks:", ", ".join(f"{name} {value:.0e}" for name, value in checks.items()))
    wrong = {name: value for name, value in checks.items() if not value <= LIMIT}
    if wrong:
        raise SystemExit(f"not timed, wrong: {wrong}")
    rows: list[dict[str, Any]] = []
    if GPU:
        print(f"{'kernel':28} {'batch':>5} {'predicted us':>12} {'measured us':>11}")
        for batch in (1, 16, 64):
            for name, bytes_moved, seconds in (*append_rows(batch, tables), *small_rows(batch)):
                predicted = bytes_moved / MEMORY + LAUNCH * (2 if name.startswith("greedy") else 1)
                rows.append({"kernel": name, "batch": batch, "predicted_s": predicted, "measured_s": seconds})
                print(f"{name:28} {batch:5} {predicted * 1e6:12.2f} {seconds * 1e6:11.2f}")
        for row in () if args.no_model else model_rows(SHAPE, (1, 16, 64)):
            rows.append(row)
            print(
                f"decoder without attention, batch {row['batch']}: {row['step_s'] * 1e3:.3f} ms, with early launches "
                f"{row['early_step_s'] * 1e3:.3f} (same logits: {row['early_is_same']}), products alone "
                f"{row['products_s'] * 1e3:.3f}, weights / 4.2 TB/s {row['weights_floor_s'] * 1e3:.3f}"
            )
    keep(args.json, "rotary, append and the small kernels of a step", rows, checks=checks)


if __name__ == "__main__":
    main()
