"""What top-k and the diff share on a GPU: the k best of a tile, ties to the lower index, without sorting.

A tile of keys stays in registers. The k-th largest key is closed in: a pass cuts the interval that holds it into four
and counts, in one reduction, how many keys lie above each cut. A stable compaction follows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparda_core.errors import ConfigError

#: Key of what may not be taken: below the key of every float, -inf included.
NEVER = tl.constexpr(-(2**31))
#: Above every key. Keys of floats end at 0x7F800000; others must stay 8 below this, so that cuts cannot overflow.
MOST = tl.constexpr(2**31 - 1)
#: Longest tile: counts of its members take 16 bits each.
LONGEST = 16384
#: Keys of one group. The smallest of at least k group maxima bounds the k-th key from below; at 16 keys a group that
#: leaves a quarter of them in question, mostly of one sign, and two octaves are crossed sooner than 32 bits.
_GROUP = tl.constexpr(16)


@triton.jit
def ordered(score):
    """int32 keys that order as these float32 do; NaN as -inf, -0.0 as 0.0."""
    bits = score.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    bits = tl.where(size > 0x7F800000, -0x800000, bits)
    bits = tl.where(size == 0, 0, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _least_bound(key, k, N: tl.constexpr):
    """A number below the k-th largest key, as close as is cheap."""
    if N >= 64 * _GROUP:
        # Members of a group lie far apart, in one thread's registers; neighbours lie in different threads.
        best = tl.max(tl.reshape(key, [_GROUP, N // _GROUP]), axis=0)
        groups = tl.sum((best > NEVER).to(tl.int32))
        low = tl.min(tl.where(best > NEVER, best, MOST))
        low = tl.where(groups >= k, low - 1, NEVER)
    else:
        low = tl.min(tl.where(key > NEVER, key, MOST)) - 1
    return low


@triton.jit
def _floor_of_best(key, k, candidates, N: tl.constexpr):
    """Where the k largest keys end: (floor, tied, need).

    Taken are all keys above `floor` and the first `need` keys equal to `tied`.
    """
    # The k-th is above low, not above high; so many keys lie above them (above low: at most).
    low, high = _least_bound(key, k, N), tl.max(key)
    above_low, above_high = candidates, tl.zeros((), tl.int32)
    # Ends early where the k-th is the largest key left, and where all keys left are taken.
    while (above_low > k) & (k - above_high > 1) & (low < high - 1):
        step = ((high.to(tl.int64) - low) // 4).to(tl.int32) + 1
        cut1 = low + step
        cut2 = cut1 + step
        cut3 = cut2 + step
        above = (key > cut1).to(tl.int64) + ((key > cut2).to(tl.int64) << 16) + ((key > cut3).to(tl.int64) << 32)
        counts = tl.sum(above)
        count1 = (counts & 0xFFFF).to(tl.int32)
        count2 = ((counts >> 16) & 0xFFFF).to(tl.int32)
        count3 = (counts >> 32).to(tl.int32)
        # From the highest cut down to the lowest that still has fewer than k keys above it, and the next one.
        high = tl.where(count1 < k, cut1, tl.where(count2 < k, cut2, tl.where(count3 < k, cut3, high)))
        above_high = tl.where(
            count1 < k, count1, tl.where(count2 < k, count2, tl.where(count3 < k, count3, above_high))
        )
        low = tl.where(count3 >= k, cut3, tl.where(count2 >= k, cut2, tl.where(count1 >= k, cut1, low)))
        above_low = tl.where(
            count3 >= k, count3, tl.where(count2 >= k, count2, tl.where(count1 >= k, count1, above_low))
        )
    tied = tl.max(tl.where(key <= high, key, NEVER))
    exact = above_low <= k
    return tl.where(exact, low, tied), tied, tl.where(exact, 0, k - above_high)


@triton.jit
def take_best(key, k, candidates, N: tl.constexpr):
    """The k largest of a tile of int32 keys: (taken, place).

    key         [N], N <= 16384; NEVER for what may not be taken
    k           at most `candidates`, the number of keys above NEVER
    taken       [N] bool; equal keys go to the lower index
    place       [N], rank of each taken one by index, 0 first
    """
    floor, tied, need = _floor_of_best(key, k, candidates, N)
    above = (key > floor).to(tl.int32)
    level = ((key == tied) & (need > 0)).to(tl.int32)
    passed = tl.cumsum(above + (level << 16), axis=0) - above - (level << 16)
    level_before = passed >> 16
    taken = (above > 0) | ((level > 0) & (level_before < need))
    return taken, (passed & 0xFFFF) + tl.minimum(level_before, need)


def tile_of(size: int, name: str) -> int:
    """The tile that holds `size` keys; raises ConfigError beyond the longest."""
    if size > LONGEST:
        raise ConfigError(f"{name}={size} must be <= {LONGEST}: a selection is made in one thread block's registers")
    return int(max(16, triton.next_power_of_2(size)))
