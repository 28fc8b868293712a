"""Kernels of ours of a decode step, each with tensors of its own, and the work that a prediction prices it by."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_calibration.pool import host_memory
from sparda_core.bench.gpu_calibration.scenes import Scene
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import Launch
from sparda_core.device_view import Choice
from sparda_core.facts import steady_facts
from sparda_core.kernels.append import gpu as append_gpu
from sparda_core.kernels.append import work as append_work
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.attend import work as attend_work
from sparda_core.kernels.attend.gpu import attend_all, attend_pages, attend_slots
from sparda_core.kernels.diff import work as diff_work
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.kernels.gate.gpu import silu_gate
from sparda_core.kernels.gate.work import gate_work
from sparda_core.kernels.listed import work as listed_work
from sparda_core.kernels.listed.gpu import play_step
from sparda_core.kernels.norm.gpu import rms_norm
from sparda_core.kernels.norm.work import norm_work
from sparda_core.kernels.sample import gpu as sample_gpu
from sparda_core.kernels.sample.work import greedy_work
from sparda_core.kernels.score_forecast import work as forecast_work
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_proxy import work as proxy_work
from sparda_core.kernels.score_proxy.gpu import proxy_block_scores
from sparda_core.kernels.score_query import work as query_work
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_uniform import work as uniform_work
from sparda_core.kernels.score_uniform.gpu import uniform_block_scores
from sparda_core.kernels.step.gpu import begin_step
from sparda_core.kernels.tables import Paged
from sparda_core.kernels.topk import work as topk_work
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.plan import Op
from sparda_core.policy import LAST_SELECTION
from sparda_core.work import Work, WorkContext

#: Channels that a proxy query keeps, as InfiniGen's selector is shipped.
CHANNELS = 32
#: What rotated tensors of a graph hold together, so that none is still in the second-level cache at its next turn.
ROTATED_BYTES = 400 << 20
CHURN = 0.15


@attrs.frozen(kw_only=True)
class Case:
    """One kernel class at one size.

    kind      of the operation that it belongs to
    launches  of one graph; each call of one is `work.launches` kernels
    work      of one call
    """

    name: str
    kind: str
    rows: int
    launches: tuple[Launch, ...]
    work: Work

    @property
    def told(self) -> dict[str, float]:
        """The work as it is kept."""
        return attrs.asdict(self.work)


#: Makes the calls of one graph for (sizes, rows, slots in selections), and their work.
Maker = Callable[[Sizes, int, int], Case]


def case_of(name: str, sizes: Sizes, rows: int, *, slots: int = 1) -> Case:
    """A kernel class by its name in `NAMES`, at the context of `sizes`; `slots` matter to a diff."""
    return _MAKERS[name](sizes, rows, slots)


def _case(name: str, kind: str, scene: Scene, calls: list[Launch], work: Work) -> Case:
    count = scene.sizes.launches
    return Case(
        name=name, kind=kind, rows=scene.rows, work=work,
        launches=tuple(calls[at % len(calls)] for at in range(max(count, len(calls)))),
    )  # fmt: skip


def _turns(sizes: Sizes, nbytes: float) -> int:
    """How many copies of a tensor of so many bytes a graph goes through."""
    return max(2, min(sizes.launches, int(-(-ROTATED_BYTES // max(1.0, nbytes)))))


def _told(
    work: Callable[..., Work], sizes: Sizes, rows: int, *, slots: int = 1, policy: str = LAST_SELECTION, **more: Any
) -> Work:
    """What a work function says of one layer of a decode step that looks one layer ahead."""
    facts = steady_facts(
        shape=attrs.evolve(sizes.shape, layers=2), spec=sizes.spec, batch=rows, context=sizes.context, churn=CHURN,
        slots=slots * sizes.spec.budget,
    )  # fmt: skip
    context = WorkContext(shape=sizes.shape, spec=sizes.spec, forecast=True, policy=policy)
    return work(Op(kind="measured", layer=1, source=0), facts, context, **more)


def _scoring(sizes: Sizes, rows: int, _: int, *, how: str) -> Case:
    scene = Scene(sizes, rows)
    shape, spec = sizes.shape, sizes.spec
    keys, width = (sizes.context, CHANNELS) if how == "proxy" else (spec.entry_count(sizes.context), shape.head_dim)
    nbytes = rows * shape.kv_heads * keys * width * 2
    layers = [scene.random(rows, shape.kv_heads, keys, width) for _ in range(_turns(sizes, nbytes))]
    query = scene.random(rows, shape.q_heads, width)
    out = torch.zeros(rows, shape.kv_heads, spec.block_count(sizes.context) + 1, device=scene.device)
    at = scene.position
    if how == "forecast":
        own = query[:, : shape.kv_heads]
        calls = [functools.partial(forecast_block_scores, own, k, at, spec, 1, out) for k in layers]
        work = _told(forecast_work.work, sizes, rows)
    elif how == "proxy":
        scale = CHANNELS**-0.5
        calls = [functools.partial(proxy_block_scores, query, k, at, spec, 1, scale, out) for k in layers]
        work = _told(proxy_work.work, sizes, rows, channels=CHANNELS)
    else:
        scratch = query_scratch(
            places=rows, q_heads=shape.q_heads, kv_heads=shape.kv_heads, entries=keys, device=scene.device
        )
        calls = [functools.partial(query_block_scores, query, k, at, spec, 0, out, scratch) for k in layers]
        work = _told(query_work.work, sizes, rows)
    return _case(f"score {how}", "score", scene, list(calls), work)


def _choose(sizes: Sizes, rows: int, _: int) -> Case:
    scene = Scene(sizes, rows)
    layers = [(scene.scores(seed), scene.choice()) for seed in range(8)]
    calls = [functools.partial(choose_blocks, scores, scene.position, sizes.spec, choice) for scores, choice in layers]
    return _case("choose", "select", scene, list(calls), _told(topk_work.work, sizes, rows))


def _uniform(sizes: Sizes, rows: int, _: int) -> Case:
    """Scores that need no keys: a hash a block."""
    scene = Scene(sizes, rows)
    outs = [scene.scores(seed) for seed in range(2)]
    calls = [functools.partial(uniform_block_scores, scene.position, 7, sizes.spec.block, out) for out in outs]
    return _case("score random", "score", scene, list(calls), _told(uniform_work.work, sizes, rows))


def _play(sizes: Sizes, rows: int, _: int) -> Case:
    """A trace's blocks in place of a choice, as measured steps have them (`selectors/device/replay.py`)."""
    scene, layers = Scene(sizes, rows), sizes.layers
    blocks = torch.arange(sizes.spec.budget, dtype=torch.int32, device=scene.device)
    trace = blocks.expand(2, layers, *scene.pairs, -1).contiguous()
    choice, step = scene.choice(), scene.ints(1)
    calls = [
        functools.partial(play_step, trace, layer, step, 0, scene.position, choice) for layer in range(layers)
    ]
    return _case("play trace", "listed", scene, list(calls), _told(listed_work.work, sizes, rows))


def _diff(sizes: Sizes, rows: int, factor: int, *, policy: str, chosen: bool = True) -> Case:
    """Some steps of some layers, selections that differ in some blocks; more blocks in all than slots hold.

    factor  slots, in selections
    chosen  whether the selection is there already; else it is made in the same launch
    Lists begin anew every replay.
    """
    scene = Scene(sizes, rows)
    layers, steps = max(1, sizes.launches // 8), max(2, sizes.launches * 3 // 4)
    counts = torch.zeros(layers, dtype=torch.int32, device=scene.device)
    calls: list[Launch] = [functools.partial(begin_step, scene.ints(1), counts)]
    ticks = [scene.ints(1, value=1 + step) for step in range(steps)]
    for layer in range(layers):
        slots, host = scene.slots(factor), scene.host()
        diff, scores = scene.diff(counts[layer : layer + 1], lists=steps), scene.scores(layer)
        for tick in ticks:
            scores, choice = scene.changed(scores, CHURN), scene.choice()
            if chosen:
                choose_blocks(scores, scene.position, sizes.spec, choice)
                call = functools.partial(diff_slots, choice, scene.position, slots, host, policy, scores, tick, diff)
            else:
                call = functools.partial(
                    choose_and_diff, scores, scene.position, sizes.spec, choice, slots, host, policy, tick, diff
                )
            calls.append(call)
    name, kind = (f"diff {policy}", "diff") if chosen else (f"choose and diff {policy}", "choose and diff")
    work = _told(diff_work.work, sizes, rows, slots=factor, policy=policy)
    return Case(name=name, kind=kind, rows=rows, launches=tuple(calls), work=work)


def attend_case(sizes: Sizes, rows: int, splits: int) -> Case:
    """The class "attend" with each list cut into so many pieces."""
    case = _attend(sizes, rows, 1, splits=splits)
    return attrs.evolve(case, work=attrs.evolve(case.work, ctas=rows * sizes.shape.kv_heads * splits))


def _attend(sizes: Sizes, rows: int, _: int, *, paged: bool = False, splits: int | None = None) -> Case:
    """Over the blocks of a selection, found by their slots, or, as in a resident layer, through a page table."""
    scene, shape, spec = Scene(sizes, rows), sizes.shape, sizes.spec
    pairs = rows * shape.kv_heads
    block = 2 * spec.block * shape.head_dim * 2
    arrays = [
        scene.random(pairs * spec.budget, 2, spec.block, shape.head_dim)
        for _ in range(_turns(sizes, pairs * spec.budget * block))
    ]
    order = torch.stack([torch.randperm(spec.budget, device=scene.device) for _ in range(pairs)])
    physical = (order + spec.budget * torch.arange(pairs, device=scene.device)[:, None]).int()
    q, counts = scene.random(rows, shape.q_heads, shape.head_dim), scene.ints(rows, shape.kv_heads, value=spec.budget)
    out, scratch = torch.empty_like(q), scene.attention(spec.budget, splits)
    where = physical.view(rows, shape.kv_heads, spec.budget)
    calls: list[Launch] = [
        functools.partial(attend_slots, q, array, where, counts, scene.position, spec, out, scratch)
        for array in arrays
    ]
    if paged:
        logical = torch.arange(spec.budget, device=scene.device, dtype=torch.int32).expand_as(where).contiguous()
        choice = Choice(blocks=logical, counts=counts)
        calls = [
            functools.partial(
                attend_pages, q, Paged(array=array, table=where, page_blocks=1), choice, scene.position, spec, out,
                scratch,
            )
            for array in arrays
        ]  # fmt: skip
    name = "attend pages" if paged else "attend"
    return _case(name, "attend", scene, calls, _told(attend_work.work, sizes, rows))


def _dense(sizes: Sizes, rows: int, _: int) -> Case:
    """Attention to everything, at a quarter of the context: enough to be bound by memory at any number of rows."""
    sizes = attrs.evolve(sizes, context=sizes.context // 4, spec=sizes.spec.with_budget(
        max(sizes.spec.budget, sizes.spec.block_count(sizes.context // 4))
    ))  # fmt: skip
    scene, shape, spec = Scene(sizes, rows), sizes.shape, sizes.spec
    blocks = spec.block_count(sizes.context)
    pages = torch.arange(rows * shape.kv_heads, device=scene.device, dtype=torch.int32)
    table = pages.view(rows, shape.kv_heads, 1)
    nbytes = rows * shape.kv_heads * blocks * 2 * spec.block * shape.head_dim * 2
    paged = [
        Paged(
            array=scene.random(rows * shape.kv_heads * blocks, 2, spec.block, shape.head_dim), table=table,
            page_blocks=blocks,
        )
        for _ in range(_turns(sizes, nbytes))
    ]  # fmt: skip
    q = scene.random(rows, shape.q_heads, shape.head_dim)
    out, scratch = torch.empty_like(q), scene.attention(blocks)
    calls = [functools.partial(attend_all, q, one, scene.position, spec, out, scratch) for one in paged]
    return _case("attend all", "attend", scene, list(calls), _told(attend_work.work, sizes, rows))


def store_of(scene: Scene) -> Store:
    """Where the rows' K and V go: each its own slot, and its own page of pinned host memory."""
    shape, spec, pairs = scene.sizes.shape, scene.sizes.spec, scene.rows * scene.sizes.shape.kv_heads
    memory = host_memory(pairs * 2 * spec.block * shape.head_dim * scene.dtype.itemsize)
    array = memory.view(scene.dtype).view(pairs, 2, spec.block, shape.head_dim)
    table = torch.arange(pairs, dtype=torch.int32, device=scene.device).view(*scene.pairs, 1)
    pages = table.expand(-1, -1, spec.block_count(scene.sizes.context)).contiguous()
    return Store(
        slots=scene.random(pairs, 2, spec.block, shape.head_dim), tail=table[:, :, 0].contiguous(),
        host=Paged(array=array, table=pages, page_blocks=1),
    )  # fmt: skip


def entries_of(scene: Scene) -> dict[str, torch.Tensor]:
    """A layer's entries and its ring of keys."""
    shape, spec = scene.sizes.shape, scene.sizes.spec
    return {
        "entries": scene.random(*scene.pairs, spec.entry_count(scene.sizes.context), shape.head_dim),
        "ring": scene.random(*scene.pairs, spec.window, shape.head_dim),
    }


def _append(sizes: Sizes, rows: int, _: int) -> Case:
    scene, shape = Scene(sizes, rows), sizes.shape
    heads, size = FusedHeads(q=shape.q_heads, kv=shape.kv_heads, has_next=True), shape.head_dim
    calls: list[Launch] = []
    for _ in range(4):
        made: dict[str, Any] = {name: scene.random(*scene.pairs, size) for name in ("key", "value", "forecast_next")}
        made |= entries_of(scene)
        calls.append(
            functools.partial(
                append_gpu.rotate_append, scene.random(rows, heads.total * size), heads=heads, cos=scene.angles,
                sin=scene.angles, position=scene.position, query=scene.random(rows, shape.q_heads, size),
                forecast_own=None, spec=sizes.spec, store=store_of(scene), **made,
            )
        )  # fmt: skip
    return _case("rotate append", "append", scene, calls, _told(append_work.work, sizes, rows))


def _norm(sizes: Sizes, rows: int, _: int) -> Case:
    scene, hidden = Scene(sizes, rows), sizes.shape.hidden
    weight = torch.ones(hidden, device=scene.device, dtype=scene.dtype)
    pairs = [scene.random(2, rows, hidden) for _ in range(8)]
    calls = [functools.partial(rms_norm, x[0], weight, x[1], eps=1e-5) for x in pairs]
    return _case("norm", "norm", scene, list(calls), norm_work(rows, WorkContext(shape=sizes.shape, spec=sizes.spec)))


def _gate(sizes: Sizes, rows: int, _: int) -> Case:
    scene, ffn = Scene(sizes, rows), sizes.shape.ffn
    wide = [scene.random(rows, 3 * ffn) for _ in range(8)]
    calls = [functools.partial(silu_gate, x[:, : 2 * ffn], x[:, 2 * ffn :]) for x in wide]
    return _case("gate", "gate", scene, list(calls), gate_work(rows, WorkContext(shape=sizes.shape, spec=sizes.spec)))


def _sample(sizes: Sizes, rows: int, _: int) -> Case:
    scene, vocab = Scene(sizes, rows), sizes.shape.vocab
    token = torch.zeros(rows, dtype=torch.int64, device=scene.device)
    scratch = sample_gpu.sample_scratch(rows, vocab, scene.device, nucleus=False)
    logits = [torch.randn(rows, vocab, device=scene.device) for _ in range(2)]
    calls = [functools.partial(sample_gpu.greedy, one, token, scratch) for one in logits]
    work = greedy_work(rows, WorkContext(shape=sizes.shape, spec=sizes.spec))
    return _case("sample", "sample", scene, list(calls), work)


_MAKERS: dict[str, Maker] = {
    "score forecast": functools.partial(_scoring, how="forecast"),
    "score query": functools.partial(_scoring, how="query"),
    "score proxy": functools.partial(_scoring, how="proxy"),
    "score random": _uniform, "choose": _choose, "play trace": _play,
    "diff last-selection": functools.partial(_diff, policy="last-selection"),
    "diff lru": functools.partial(_diff, policy="lru"),
    "choose and diff last-selection": functools.partial(_diff, policy="last-selection", chosen=False),
    "choose and diff lru": functools.partial(_diff, policy="lru", chosen=False),
    "attend": _attend, "attend pages": functools.partial(_attend, paged=True), "attend all": _dense,
    "rotate append": _append, "norm": _norm, "gate": _gate, "sample": _sample,
}  # fmt: skip
NAMES = tuple(_MAKERS)
