"""How decode attention cuts the list of a (row, KV head) into pieces for a GPU's multiprocessors. Free of torch."""

from __future__ import annotations

import functools

import attrs

#: Thread blocks that a multiprocessor of an H200 holds: four tiles of shared memory and about 110 registers a thread.
CTAS_PER_SM = 3
#: Most pieces of one list: every piece leaves a partial result that somebody must add up.
MOST_SPLITS = 128
#: Most thread blocks for each multiprocessor, unless there are more lists than that.
_WAVES = 16
#: Bytes of keys in one tile. K and V of a few tiles in flight must fit a multiprocessor's shared memory.
_TILE_BYTES = 16 * 2**10
#: Part of a multiprocessor's share of device memory that one thread block draws by itself.
_ALONE = 0.6
#: What beginning and ending a piece costs, in tiles.
_PIECE = 1.0
#: What adding up one more piece costs, in tiles.
_JOIN = 0.02
#: Where lists are few and short, an H200 wants two thread blocks for each multiprocessor, small ones, at once: two
#: warps and half tiles, three under way, were best or within 0.1 us of it at batch 1 to 16 of MiniCPM4.1-8B with 96
#: blocks (522 cuts timed by benchmarks/gpu/attend_sweep.py, 30 Nov 2026). More lists or longer pieces go the other
#: way. A half tile takes a piece 0.6 us, a second launch 1.7: the shortest lists stay whole.
_FEW_LISTS, _SHORT_PIECE = 0.25, 32
_SMALL_WARPS, _SMALL_DEPTH, _SMALL_CTAS, _WHOLE = 2, 3, 2, 3


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
    wide = max(16, 1 << (head_dim - 1).bit_length())
    fit = max(1, int(_TILE_BYTES // (wide * value_bytes)))
    return max(16, min(128, 1 << (fit.bit_length() - 1)))


@attrs.frozen(kw_only=True)
class Cut:
    """How one launch cuts its lists.

    tokens  of one tile
    splits  pieces of each list
    join    pieces that the last program adds up; 1: nothing to add; 0: a second launch adds them up
    warps   of a thread block
    depth   tiles in flight while one is worked on
    """

    tokens: int
    splits: int
    join: int
    warps: int
    depth: int

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return 1 if self.join else 2


def cut_lists(
    pairs: int, blocks: int, *, block: int, head_dim: int, value_bytes: float, sms: int, tuning: Tuning | None = None
) -> Cut:
    """For `pairs` lists of up to `blocks` blocks."""
    tuning = tuning or Tuning()
    tokens = tuning.tokens or tile_tokens(head_dim, value_bytes)
    small = small_pieces(pairs, -(-blocks * block // _small(tokens)), sms)
    if small and tuning.splits is None and tuning.tokens is None:
        tokens, splits, join = _small(tokens), small, int(small == 1)
        warps, depth = _SMALL_WARPS, _SMALL_DEPTH
    else:
        tiles = max(1, -(-blocks * block // tokens))
        splits = min(tuning.splits or split_count(pairs, tiles, sms), tiles, MOST_SPLITS)
        join = splits if splits <= max(1, tuning.fused_up_to) else 0
        warps, depth = 4, 2
    return Cut(tokens=tokens, splits=splits, join=join, warps=tuning.warps or warps, depth=tuning.depth or depth)


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
def split_count(pairs: int, tiles: int, sms: int) -> int:
    """Pieces for each of `pairs` lists of at most `tiles` tiles on `sms` multiprocessors; a tie goes to fewer.

    The busiest multiprocessor decides. It draws its share of device memory only when two thread blocks
    keep it busy; a piece costs its beginning and its end, and its part in the sum.
    """

    def cost(splits: int) -> float:
        mine = -(-pairs * splits // sms)
        tiles_each = -(-tiles // splits)
        return mine * (tiles_each + _PIECE / 2) / min(1.0, mine * _ALONE) + _PIECE + _JOIN * splits

    return min(range(1, most_splits(pairs, tiles, sms) + 1), key=cost)


def most_splits(pairs: int, tiles: int, sms: int) -> int:
    """Bound of `split_count`. It grows with tiles, and `pairs` times it is at most `most_parts`."""
    return max(1, min(tiles, MOST_SPLITS, _WAVES * sms // pairs))


def most_parts(
    pairs: int, blocks: int, *, block: int, head_dim: int, value_bytes: int, sms: int, tuning: Tuning
) -> int:
    """Most pieces in all of up to `pairs` lists of up to `blocks` blocks."""
    tiles = max(1, -(-blocks * block // (tuning.tokens or _small(tile_tokens(head_dim, value_bytes)))))
    if tuning.splits is not None:
        return pairs * min(tuning.splits, tiles, MOST_SPLITS)
    return max(pairs, min(pairs * min(tiles, MOST_SPLITS), _WAVES * sms))
