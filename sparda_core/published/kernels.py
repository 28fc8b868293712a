"""Work of every kernel that the reference release launches in a decode step, from reading its source.

Nothing of it was run. What a kernel moves follows from shapes; how fast a badly shaped grid goes is an
estimate, and each estimate has a name below. `docs/published.md` tells what the result hangs on.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sparda_core.kernels.linear.work import product_work
from sparda_core.plan import Kind
from sparda_core.work import Work, WorkContext

#: Entries in a tile of the query-driven scoring, and how often it goes through all of them.
TILE_ENTRIES, PASSES = 64, 2
#: Pooling programs of 4 warps that an SM holds, and SMs of an H100.
POOL_PROGRAMS_PER_SM, SMS = 16, 132
#: The copy kernel has one tile of 64 tokens of K, or of V, in flight a CTA.
IN_FLIGHT_BYTES = 16384.0


@attrs.frozen(kw_only=True)
class Paces:
    """Seconds that badly shaped grids take for a unit of their work, whatever the memory could do.

    tile    query-driven scoring: one warp a (row, KV head) takes all entries twice, a tile of 64 of them after
            another, each waiting for its loads and two products. Estimate: 0.3 to 0.4 ms a layer of 128K tokens
    pool    pooling has one program a (KV head, row, block), which lives for two dependent loads. Estimate
    topk    torch.topk, 96 of 2,049 values, a thread block a (KV head, row). Estimate: 20 to 40 us
    diff    residency diff, 96 threads that scan 96 ids. Estimate: 5 to 10 us
    walk    the copy kernel's list holds hits too, and each thread block loads its share of it, one id after
            another. From the release's own kernel on an H200, where 768 ids a thread block cost about 250 us
    ramp    the two synchronous copy kernels of a layer, beyond a round trip each and their bytes at full rate: 22 us
            (12 to 31) for the release's own on an H200, less two round trips
    """

    tile: float = 1.4e-6
    pool: float = 1.5e-6
    topk: float = 30e-6
    diff: float = 7.5e-6
    walk: float = 0.3e-6
    ramp: float = 16e-6


@attrs.frozen(kw_only=True)
class Load:
    """What one layer of one step meets.

    layer      the layer during which the kernel runs
    misses     blocks of one KV head that change, over all rows and KV heads
    copy_ctas  thread blocks of the copy kernel
    """

    layer: int
    rows: int
    context: int
    misses: int
    copy_ctas: int
    work: WorkContext
    paces: Paces = Paces()

    @property
    def pairs(self) -> int:
        """(row, KV head) pairs."""
        return self.rows * self.work.shape.kv_heads

    @property
    def entries(self) -> int:
        """Entries of a row."""
        return self.work.spec.entry_count(self.context)

    @property
    def entry_bytes(self) -> float:
        """Bytes of all rows' entries in one layer."""
        return self.pairs * self.entries * self.work.shape.head_dim * self.work.entry_bytes

    @property
    def slots(self) -> int:
        """Slots of all rows and KV heads in one layer."""
        return self.pairs * self.work.spec.budget

    @property
    def miss_bytes(self) -> float:
        """K and V of the misses."""
        return self.misses * self.work.block_bytes


KernelWork = Callable[[Load], Work]


def _product(inputs: int, outputs: int, load: Load) -> Work:
    return product_work(load.rows, inputs, outputs, load.work)


def _small(values_a_row: float, load: Load) -> Work:
    """An elementwise kernel: `values_a_row` read and written once in each row."""
    return Work(hbm_bytes=2 * values_a_row * load.rows * load.work.activation_bytes, ctas=load.rows)


def _paced(size: float, ctas: int, seconds: float, **more: float) -> Work:
    """A grid whose thread blocks take `seconds` each, side by side, whatever the memory could do."""
    return Work(hbm_bytes=size, ctas=ctas, cta_bytes_per_s=size / (ctas * seconds), **more)  # type: ignore[arg-type]


def _qkv(load: Load, *, forecast: bool) -> Work:
    shape = load.work.shape
    # The Forecast of the next layer, and in the first layer one for itself: 256 columns each.
    forecasts = ((load.layer < shape.layers - 1) + (load.layer == 0)) * forecast
    return _product(shape.hidden, (shape.q_heads + (2 + forecasts) * shape.kv_heads) * shape.head_dim, load)


def _query_scores(load: Load) -> Work:
    shape = load.work.shape
    size = PASSES * load.entry_bytes
    tiles = PASSES * -(-load.entries // TILE_ENTRIES)
    flops = 2.0 * PASSES * load.rows * load.entries * shape.q_heads * shape.head_dim
    return attrs.evolve(_paced(size, load.pairs, tiles * load.paces.tile), flops=flops, ctas_per_sm=16)


def _pool(load: Load) -> Work:
    programs = load.pairs * load.work.spec.block_count(load.context + 1)
    at_once = min(programs, SMS * POOL_PROGRAMS_PER_SM)
    size = programs * 2 * (load.work.spec.pool_width + 1) * load.work.activation_bytes  # scores, and a second input
    return _paced(size, programs, load.paces.pool * programs / at_once, ctas_per_sm=POOL_PROGRAMS_PER_SM)


def _topk(load: Load) -> Work:
    values = load.work.spec.block_count(load.context + 1)
    return _paced(load.pairs * values * 2.0, load.pairs, load.paces.topk, ctas_per_sm=2)


def _attend(load: Load) -> Work:
    shape, tokens = load.work.shape, load.work.spec.budget * load.work.spec.block
    return Work(
        flops=4.0 * load.rows * tokens * shape.q_heads * shape.head_dim,
        # One thread block an SM: keys are split as far as that takes.
        hbm_bytes=load.slots * load.work.block_bytes, ctas=load.pairs * max(1, SMS // load.pairs),
    )  # fmt: skip


def _walk(load: Load) -> Work:
    return _paced(8.0 * load.slots, load.copy_ctas, load.paces.walk * -(-load.slots // load.copy_ctas))


def _fetch(share: float, *, launches: int, whole_gpu: bool) -> KernelWork:
    """`share` of each block, K and V or one of them, over the link."""

    def work(load: Load) -> Work:
        size = share * load.miss_bytes
        # The synchronous kernels have a thread block a slot, far more than fill the link: the most ever measured.
        ctas = 32 if whole_gpu else load.copy_ctas
        return Work(
            h2d_bytes=size, hbm_bytes=size, pieces=load.misses, launches=launches, ctas=ctas, sms=ctas,
            in_flight_bytes=IN_FLIGHT_BYTES,
        )  # fmt: skip

    return work


def _on_device(load: Load) -> Work:
    """K or V of the changed blocks, read from the full store and written to the working buffer."""
    return Work(hbm_bytes=load.miss_bytes, ctas=load.slots, ctas_per_sm=16)


def _mlp(load: Load) -> Work:
    return _product(load.work.shape.hidden, 2 * load.work.shape.ffn, load)


def _hidden(load: Load) -> Work:
    return _small(load.work.shape.hidden, load)


def _kv(load: Load) -> Work:
    return _small(load.work.shape.kv_heads * load.work.shape.head_dim, load)


def _score_row(load: Load) -> Work:
    return _small(load.work.shape.kv_heads * load.entries, load)


def _map(load: Load) -> Work:
    return Work(hbm_bytes=2 * 8.0 * load.slots, ctas=load.pairs)


def _host_only(_: Load) -> Work:
    return Work()


#: Kind of operation -> its work. The comment says what the host launches.
WORK: dict[str, KernelWork] = {
    Kind.EMBED: _hidden,
    "positions": _host_only,  # a tensor of lengths made on the host: the step cannot start before it
    "norm-in": _hidden,  # root mean square norm
    "qkv": lambda load: _qkv(load, forecast=False),
    "qkv-forecast": lambda load: _qkv(load, forecast=True),
    "query-copy": _hidden,  # three copies that make q, k and v contiguous
    "key-copy": _kv,
    "value-copy": _kv,
    "rotary": _hidden,  # q and k
    "rotary-forecast": _kv,
    "window": _kv,  # the new key into the compression window
    "tail": _kv,  # K and V to the tail slot, one fused kernel
    "length": _host_only,  # lengths += 1
    "tail-key": _kv,
    "tail-value": _kv,
    "score-query": _hidden,  # q regrouped
    "score": _query_scores,
    "score-forecast-query": _kv,
    "score-copy-entries": lambda load: Work(hbm_bytes=2 * load.entry_bytes, ctas=load.pairs * 2048, ctas_per_sm=16),
    "score-forecast": lambda load: Work(
        flops=2.0 * load.pairs * load.entries * load.work.shape.head_dim, hbm_bytes=load.entry_bytes,
        ctas=load.pairs * 64, ctas_per_sm=8,
    ),
    "score-copy": _score_row,
    "select-copy": _score_row,  # one graph launch for this and the next two
    "select-pool": lambda load: attrs.evolve(_pool(load), launches=0),
    "select-topk": lambda load: attrs.evolve(_topk(load), launches=0),
    Kind.DIFF: lambda load: _paced(3 * 8.0 * load.slots, load.pairs, load.paces.diff),
    "diff-map": _map,
    "events": _host_only,  # record ready, wait for it, record done: host time of about one launch
    "fetch-walk": _walk,
    Kind.FETCH: _fetch(1.0, launches=0, whole_gpu=False),  # the kernel that began with the walk
    "fetch-keys": _fetch(0.5, launches=1, whole_gpu=True),
    "fetch-values": _fetch(0.5, launches=1, whole_gpu=True),
    "fetch-ramp": lambda load: attrs.evolve(_paced(8.0 * load.slots, load.slots, load.paces.ramp), launches=0),
    "copy-keys": _on_device,
    "copy-values": _on_device,
    Kind.ATTEND: _attend,
    "attend-combine": _hidden,
    Kind.OUTPUT: lambda load: _product(load.work.shape.hidden, load.work.shape.hidden, load),
    "output-scale": _hidden,
    "output-add": _hidden,
    "norm-mlp": _hidden,
    Kind.MLP: _mlp,  # gate and up in one product
    "mlp-activation": lambda load: _small(1.5 * load.work.shape.ffn, load),
    "mlp-down": lambda load: _product(load.work.shape.ffn, load.work.shape.hidden, load),
    "mlp-scale": _hidden,
    "mlp-add": _hidden,
    "norm-out": _hidden,
    Kind.HEAD: lambda load: _product(load.work.shape.hidden, load.work.shape.vocab, load),
    "logits-float": lambda load: _small(1.5 * load.work.shape.vocab, load),
    "argmax": lambda load: _small(load.work.shape.vocab, load),
}
