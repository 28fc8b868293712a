"""How scoring is cut into thread blocks on a GPU. Free of torch: launches and work both read it."""

from __future__ import annotations

#: Bytes of keys that one program reads. Four warps hold them in 64 registers a thread, all under way at once.
TILE_BYTES = 32 << 10
WARPS = 4
#: Fewest blocks a program scores: below, the key that two programs read is more than its own share.
LEAST_TILE = 8
#: Programs of one SM at the shape of MiniCPM4.1-8B: 96 registers a thread (triton 3.6, sm_90).
PROGRAMS_PER_SM = 5
#: SMs that a statement of work supposes: an H100's or H200's.
SMS = 132


def tile_blocks(blocks: int, rows: int, block_bytes: int, sms: int = SMS) -> int:
    """Blocks that a program scores: what `TILE_BYTES` hold, fewer where that left less than two programs an SM.

    rows is places times KV heads, block_bytes what is read for one block, padding included.
    """
    tile = 1
    while 2 * tile * block_bytes <= TILE_BYTES:
        tile *= 2
    while tile > LEAST_TILE and -(-blocks // tile) * rows < 2 * sms:
        tile //= 2
    return tile


def block_bytes(reach: int, width: int, value_bytes: int) -> int:
    """Bytes read for one block of `reach` keys of `width` values, each padded to a power of two."""
    return _padded(reach) * _padded(width) * value_bytes


def _padded(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
