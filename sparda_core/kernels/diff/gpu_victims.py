"""Which slots make room on a GPU, in the policy's order."""

from __future__ import annotations

import triton
import triton.language as tl

from sparda_core.kernels.topk.gpu_ranking import MOST, NEVER, ordered, take_best

#: Policies, as the kernel is compiled for them.
LAST, LRU, SCORE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
#: Victims that are compared with all others at a time; a step seldom misses more.
_TOGETHER = tl.constexpr(32)


@triton.jit
def _keys(slot, exists, held, used, scores, current, M, POLICY: tl.constexpr):
    """int32 keys of slots, largest first to go: empty ones, then the oldest, or the worst scored."""
    block = tl.load(held + slot, mask=exists, other=-1)
    if POLICY == SCORE:
        scored = exists & (block >= 0) & (block <= current) & (block < M)
        key = ~ordered(tl.load(scores + block, mask=scored, other=float("-inf")))
        empty = MOST - 8
    else:
        key = ~tl.load(used + slot, mask=exists, other=0)
        empty = 0  # ticks are not negative, so their complements are; a short interval takes few passes
    return tl.where(block < 0, empty, key)


@triton.jit
def victims(
    kept, need, held, used, where, scores, out, current, S, M,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Write the slots of the first `need` victims to `out`, where every thread may read them afterwards.

    kept  [SLOTS] bool, slots that may not go. Under last-selection all others are emptied here
    """
    i_s = tl.arange(0, SLOTS)
    loose = (i_s < S) & (kept == 0)
    if POLICY == LAST:
        block = tl.load(held + i_s, mask=loose, other=-1)
        tl.store(where + block, -1, mask=block >= 0)
        tl.store(held + i_s, -1, mask=loose)
        rank = tl.cumsum(loose.to(tl.int32), axis=0) - 1
        tl.store(out + rank, i_s, mask=loose & (rank < need))
        tl.debug_barrier()
    else:
        key = tl.where(loose, _keys(i_s, loose, held, used, scores, current, M, POLICY), NEVER)
        taken, place = take_best(key, need, tl.sum(loose.to(tl.int32)), SLOTS)
        tl.store(out + place, i_s, mask=taken)
        tl.debug_barrier()
        if need > 1:
            _sort(need, held, used, scores, out, current, M, WIDTH, POLICY)


@triton.jit
def _sort(need, held, used, scores, out, current, M, WIDTH: tl.constexpr, POLICY: tl.constexpr):
    """Bring out[:need], slots in ascending order, into the order in which they go."""
    i_w = tl.arange(0, WIDTH)
    slot = tl.load(out + i_w, mask=i_w < need, other=0)
    key = _keys(slot, i_w < need, held, used, scores, current, M, POLICY)
    rank = tl.zeros([WIDTH], tl.int32)
    for start in range(0, need, _TOGETHER):
        j = start + tl.arange(0, _TOGETHER)
        rival = tl.load(out + j, mask=j < need, other=0)
        rival_key = _keys(rival, j < need, held, used, scores, current, M, POLICY)
        # Rivals along the second axis: keys then reach other threads through shared memory, not by loading again.
        level = (rival_key[None, :] == key[:, None]) & (j[None, :] < i_w[:, None])
        before = (rival_key[None, :] > key[:, None]) | level
        rank += tl.sum((before & (j < need)[None, :]).to(tl.int32), axis=1)
    tl.debug_barrier()  # all have read the old order
    tl.store(out + rank, slot, mask=i_w < need)
    tl.debug_barrier()
