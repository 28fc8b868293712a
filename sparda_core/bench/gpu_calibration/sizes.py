"""How much a calibration measures: in full, quickly, or next to nothing, to try the code without a GPU. Torch-free."""

from __future__ import annotations

import attrs

from sparda_core.shapes import BlockSpec, ModelShape, named_shape

KIB, MIB, GIB = 2**10, 2**20, 2**30
#: (thread blocks, KiB in flight, KiB of a block of the list).
Copy = tuple[int, int, int]


@attrs.frozen(kw_only=True)
class Sizes:
    """What is measured.

    shape, spec, context  of the decode step whose kernels are timed
    dtype            by torch's name
    batches          rows at which every kernel of a step is timed
    finely           whether kernels are timed between these rows and at other contexts, too (`points.py`)
    in_turn          rows at which parts of a step are timed in turn; `whole`: a layer with selection and attention
    elastic          rows at which it is timed beside others; `classes`: which of them, none named: all
    ctas             thread blocks of those others
    product_rows     rows of the products that copies run beside
    beside           copies that run beside products, coming while these run; `first`: there before them
    forked           copies that one graph forks beside compute; `forked_us`: how long they take alone, about
    forked_rows      of that compute: at `forked_few` of them more kinds of it than at the others
    forked_cuts      (rows, pieces): of attention, besides, whose lists are cut into so many
    forked_layers    of such a graph; `forked_repeats`: replays that are counted
    alone, repeated  copies with nothing beside them, on fresh lists and on lists copied before
    sizes            bytes of one copy by the copy engine; `pieces`: pieces of one call, `counts`: how many
    list_blocks      lengths of lists that the host must see
    pool_bytes       pinned memory that fresh lists range over: a smaller pool flatters copies, for translations last
    list_bytes       that one list copies
    device_bytes     of one buffer for copies within device memory; `square`: side of the large product
    layers           of products of one graph; `launches`: of a small kernel in one graph
    beside_us        how long whatever runs beside takes, about
    repeats, replays behind each median
    """

    shape: ModelShape
    spec: BlockSpec
    context: int
    dtype: str = "bfloat16"
    batches: tuple[int, ...] = (1, 4, 16, 64)
    finely: bool = False
    in_turn: tuple[int, ...] = (1, 4, 16, 64)
    whole: tuple[int, ...] = (16,)
    elastic: tuple[int, ...] = (16, 64)
    classes: tuple[str, ...] = ()
    ctas: tuple[int, ...] = (2, 8, 32)
    product_rows: tuple[int, ...] = (16, 64, 256)
    beside: tuple[Copy, ...]
    first: tuple[Copy, ...]
    forked: tuple[Copy, ...]
    forked_rows: tuple[int, ...] = (16, 64)
    forked_few: tuple[int, ...] = (16, 64)
    forked_cuts: tuple[tuple[int, int], ...] = ()
    forked_us: float = 400.0
    forked_layers: int = 4
    forked_repeats: int = 3
    alone: tuple[Copy, ...]
    repeated: tuple[Copy, ...]
    sizes: tuple[int, ...]
    pieces: tuple[int, ...]
    counts: tuple[int, ...]
    list_blocks: tuple[int, ...]
    pool_bytes: int
    list_bytes: int
    device_bytes: int
    square: int
    layers: int = 8
    launches: int = 32
    beside_us: float = 3000.0
    repeats: int = 5
    replays: int = 15

    @property
    def block_kib(self) -> int:
        """KiB of one KV block on the link."""
        return 2 * self.spec.block * self.shape.head_dim * 2 // KIB or 1


#: Rows between which the library's products change their tiles.
_FINE = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MAIN_SPEC = BlockSpec(block=64, window=32, stride=16, sink=1, local=32, budget=96)
#: Rows of which attention's grid fills the SMs with one, two or three of its thread blocks, in one round or in more.
_FORKED_ROWS = (1, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160)
#: From one thread block an SM to more than the three that it holds, at one number of rows.
_FORKED_CUTS = (*((24, splits) for splits in (2, 4, 5, 6, 7, 9)), *((64, splits) for splits in (1, 3, 4)))
_STAIRS = (1, 2, 3, 4, 8, 16, 32)


def full() -> Sizes:
    """All of it: about three minutes on an H200."""
    return Sizes(
        shape=named_shape("minicpm4.1-8b"), spec=MAIN_SPEC, context=131072, finely=True, in_turn=_FINE,
        whole=(1, 8, 16, 28, 40, 64, 112),
        beside=tuple((ctas, kib, 32) for kib in (128, 16) for ctas in _STAIRS),
        first=((1, 128, 32), (2, 128, 32), (3, 128, 32), (4, 128, 32), (8, 16, 32), (16, 16, 32)),
        forked=((1, 128, 32), (2, 128, 32), (3, 128, 32), (4, 128, 32), (8, 128, 32), (1, 16, 32)),
        forked_rows=_FORKED_ROWS, forked_few=(1, 8, 16, 24, 40, 64, 112, 160), forked_cuts=_FORKED_CUTS,
        alone=(
            *((ctas, kib, 32) for kib in (128, 64, 32, 16) for ctas in _STAIRS),
            *((ctas, kib, 16) for kib in (128, 16) for ctas in (1, 2, 4, 8)),
            *((ctas, 128, kib) for kib in (64, 128) for ctas in (1, 2, 4)),
        ),
        repeated=tuple((ctas, kib, 32) for kib in (128, 16) for ctas in (1, 2, 4, 8)),
        sizes=tuple(4 * KIB << 2 * step for step in range(10)),
        pieces=tuple(4 * KIB << step for step in range(7)), counts=(64, 512, 2048),
        list_blocks=(16, 64, 150, 300, 600, 900), pool_bytes=32 * GIB, list_bytes=64 * MIB, device_bytes=2 * GIB,
        square=8192,
    )  # fmt: skip


def quick() -> Sizes:
    """What a profile needs and nothing more: about a minute on an H200."""
    return attrs.evolve(
        full(), batches=(1, 16, 64), finely=False, in_turn=(1, 16, 64), whole=(16,), elastic=(16,), ctas=(8,),
        repeats=3, replays=7,
        beside=((1, 128, 32), (2, 128, 32), (3, 128, 32), (8, 128, 32), (4, 16, 32), (16, 16, 32)),
        first=((1, 128, 32), (2, 128, 32), (8, 16, 32)),
        alone=((1, 128, 32), (2, 128, 32), (4, 128, 32), (1, 16, 16), (2, 16, 16), (4, 16, 16), (16, 16, 16)),
        forked=((1, 128, 32), (2, 128, 32), (4, 128, 32), (1, 16, 32)), forked_rows=(1, 16, 24, 64),
        repeated=((1, 128, 32), (1, 16, 32)), pool_bytes=8 * GIB, counts=(2048,), list_blocks=(16, 150, 600),
    )  # fmt: skip
