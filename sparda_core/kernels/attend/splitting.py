"""How decode attention cuts the list of a (row, KV head) into pieces for a GPU's multiprocessors. Free of torch."""

from __future__ import annotations

import functools

import attrs

from sparda_core.kernels.attend.occupancy import Sms, ctas_per_sm, power_of_two, shared_bytes
from sparda_core.kernels.attend.rounds import turns

#: Most pieces of one list: every piece leaves a partial result that somebody must add up.
MOST_SPLITS = 128
#: Most thread blocks for each multiprocessor, unless there are more lists than that.
_WAVES = 16
#: Bytes of keys in one tile. K and V of a few tiles in flight must fit a multiprocessor's shared memory.
_TILE_BYTES = 16 * 2**10
#: Where lists are few and short, an H200 wants two thread blocks for each multiprocessor, small ones, at once: two
#: warps and half tiles, three under way, were best or within 0.1 us of it at batch 1 to 16 of MiniCPM4.1-8B with 96
#: blocks (522 cuts timed by benchmarks/gpu/attend_sweep.py, 30 Nov 2026). More lists or longer pieces go the other
#: way. A half tile takes a piece 0.6 us, a second launch 1.7: the shortest lists stay whole.
_FEW_LISTS, _SHORT_PIECE = 0.25, 32
_SMALL_WARPS, _SMALL_DEPTH, _SMALL_CTAS, _WHOLE = 2, 3, 2, 3
#: Elsewhere.
_WARPS, _DEPTH = 4, 2


@attrs.frozen(kw_only=True)
class Tuning:
    """Choices that change only how long attention takes.

    warps        warps of a thread block; None: 4, or 2 for few and short lists
    depth        tiles in flight while one is worked on; their K and V lie in shared memory; None: 2, or 3 for those
    fused_up_to  most pieces that the last one to finish adds up by itself; a second launch adds up more
    splits       pieces of each list; None: `cut_lists` decides
    tokens       of one tile, a power of two from 16 to 128; None: `tile_tokens` decides
    early        a second launch takes its places before the first has ended, where the device can
    """

    warps: int | None = None
    depth: int | None = None
    fused_up_to: int = 8
    splits: int | None = None
    tokens: int | None = None
    early: bool = True


def tile_tokens(head_dim: int, value_bytes: float) -> int:
    """Tokens of one tile, a power of two from 16 to 128: about 16 KiB of keys, head dims padded to a power of two."""
    fit = max(1, int(_TILE_BYTES // (power_of_two(head_dim, 16) * value_bytes)))
    return max(16, min(128, 1 << (fit.bit_length() - 1)))


@attrs.frozen(kw_only=True)
class Cut:
    """How one launch cuts its lists.

    tokens  of one tile
    splits  pieces of each list
    join    pieces that the last program adds up; 1: nothing to add; 0: a second launch adds them up
    warps   of a thread block
    depth   tiles in flight while one is worked on
    ctas_per_sm  thread blocks that a multiprocessor holds
    """

    tokens: int
    splits: int
    join: int
    warps: int
    depth: int
    ctas_per_sm: int

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return 1 if self.join else 2


def cut_lists(
    pairs: int, blocks: int, *, block: int, group: int, head_dim: int, value_bytes: float, sms: Sms,
    tuning: Tuning | None = None,
) -> Cut:  # fmt: skip
    """For `pairs` lists of up to `blocks` blocks, each for `group` query heads, on the multiprocessors `sms`."""
    tuning = tuning or Tuning()
    tokens = tuning.tokens or tile_tokens(head_dim, value_bytes)
    small = small_pieces(pairs, -(-blocks * block // _small(tokens)), sms.count)
    few = bool(small) and tuning.splits is None and tuning.tokens is None
    tokens = _small(tokens) if few else tokens
    warps = max(tuning.warps or (_SMALL_WARPS if few else _WARPS), _least_warps(group, head_dim))
    depth = tuning.depth or (_SMALL_DEPTH if few else _DEPTH)
    own = shared_bytes(tokens=tokens, depth=depth, group=group, head_dim=head_dim, value_bytes=value_bytes)
    held = ctas_per_sm(own, warps, sms)
    tiles = max(1, -(-blocks * block // tokens))
    if few:
        splits = small
    elif tuning.splits:
        splits = min(tuning.splits, tiles, MOST_SPLITS)
    else:
        left = _left(tokens, group, head_dim, value_bytes)
        splits = split_count(pairs, tiles, sms=sms.count, ctas_per_sm=held, left=left)
    join = splits if splits <= (1 if few else max(1, tuning.fused_up_to)) else 0
    return Cut(tokens=tokens, splits=splits, join=join, warps=warps, depth=depth, ctas_per_sm=held)


def _left(tokens: int, group: int, head_dim: int, value_bytes: float) -> float:
    """Bytes of a piece's result, float32, written and read, over those of a tile's keys and values."""
    return 2 * 4 * group * (head_dim + 2) / (2 * tokens * head_dim * value_bytes)


def _least_warps(group: int, head_dim: int) -> int:
    """So that what a thread adds up fits its registers."""
    return min(16, power_of_two(group, 16) * power_of_two(head_dim, 16) // 1024)


def _small(tokens: int) -> int:
    """Half a tile."""
    return max(16, tokens // 2)


def small_pieces(pairs: int, tiles: int, sms: int) -> int:
    """Pieces for each of few and short lists of at most `tiles` half tiles; 0 where they are neither."""
    if pairs > _FEW_LISTS * sms:
        return 0
    if tiles <= _WHOLE:
        return 1
    each = -(-tiles // min(MOST_SPLITS, _SMALL_CTAS * sms // pairs))
    return -(-tiles // each) if each <= _SHORT_PIECE else 0


@functools.lru_cache(maxsize=4096)
def split_count(pairs: int, tiles: int, *, sms: int, ctas_per_sm: int, left: float) -> int:
    """Pieces for each of `pairs` lists of at most `tiles` tiles, the fewest of those that take the fewest `turns`."""

    def cost(splits: int) -> float:
        return turns(pairs, tiles, splits, sms=sms, ctas_per_sm=ctas_per_sm, left=left)

    return min(range(1, most_splits(pairs, tiles, sms) + 1), key=cost)


def most_splits(pairs: int, tiles: int, sms: int) -> int:
    """Bound of `split_count`. It grows with tiles, and `pairs` times it is at most `most_parts`."""
    return max(1, min(tiles, MOST_SPLITS, _WAVES * sms // pairs))


def most_parts(
    pairs: int, blocks: int, *, block: int, head_dim: int, value_bytes: int, sms: Sms, tuning: Tuning
) -> int:
    """Most pieces in all of up to `pairs` lists of up to `blocks` blocks."""
    tiles = max(1, -(-blocks * block // (tuning.tokens or _small(tile_tokens(head_dim, value_bytes)))))
    if tuning.splits is not None:
        return pairs * min(tuning.splits, tiles, MOST_SPLITS)
    return max(pairs, min(pairs * min(tiles, MOST_SPLITS), _WAVES * sms.count))
