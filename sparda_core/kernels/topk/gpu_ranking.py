"""What top-k and the diff share on a GPU: the k best of a tile, ties to the lower index, without sorting.

A tile of keys stays in registers. The k-th largest key is found digit by digit: a pass counts, for 2**BITS - 1
thresholds at once, how many keys lie above each. A stable compaction follows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparda_core.errors import ConfigError

#: Key of what may not be taken: below the key of every float, -inf included.
NEVER = tl.constexpr(-(2**31))
#: Largest key.
MOST = tl.constexpr(2**31 - 1)
#: Longest tile: two counts of its members share one 32-bit number.
LONGEST = 16384
#: Bits of a digit. Thresholds of a pass cost 2**BITS comparisons a key, fewer bits more passes.
DIGIT = 2


@triton.jit
def ordered(score):
    """int32 keys that order as these float32 do; NaN as -inf, -0.0 as 0.0."""
    bits = score.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    bits = tl.where(size > 0x7F800000, -0x800000, bits)
    bits = tl.where(size == 0, 0, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _floor_of_best(key, k, candidates, BITS: tl.constexpr):
    """Where the k largest keys end: (floor, tied, need).

    Taken are all keys above `floor` and the first `need` keys equal to `tied`. `candidates` keys are above NEVER.
    """
    steps = tl.arange(0, 2**BITS)
    low = tl.full((), NEVER, tl.int32)  # more than k keys lie above it; the k-th is above it and not above high
    high = tl.full((), MOST, tl.int32)
    above_low = candidates
    above_high = tl.zeros((), tl.int32)
    step = tl.full((), 2 ** (32 - BITS), tl.int32)
    # Ends early where the k-th is the largest key left, and where all keys left are taken.
    while (above_low > k) & (k - above_high > 1) & (step > 0):
        bounds = low + steps * step
        counts = tl.sum((key[None, :] > bounds[:, None]).to(tl.int32), axis=1)
        enough = counts >= k
        # Once low has risen, its own count is exact; before, NEVER itself is never above.
        above_low = tl.minimum(above_low, tl.min(tl.where(enough, counts, MOST)))
        above_high = tl.maximum(above_high, tl.max(tl.where(enough, 0, counts)))
        high = tl.minimum(high, tl.min(tl.where(enough, high, bounds)))
        low = tl.max(tl.where(enough, bounds, low))
        step = step >> BITS
    tied = tl.max(tl.where(key <= high, key, NEVER))
    exact = above_low <= k
    return tl.where(exact, low, tied), tied, tl.where(exact, 0, k - above_high)


@triton.jit
def take_best(key, k, candidates, BITS: tl.constexpr):
    """The k largest of a tile of int32 keys: (taken, place).

    key         [N], N <= 16384; NEVER for what may not be taken
    k           at most `candidates`, the number of keys above NEVER
    taken       [N] bool; equal keys go to the lower index
    place       [N], rank of each taken one by index, 0 first
    """
    floor, tied, need = _floor_of_best(key, k, candidates, BITS)
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
