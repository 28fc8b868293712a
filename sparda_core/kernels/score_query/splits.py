"""How scoring with the true query is cut into thread blocks on a GPU. Free of torch."""

from __future__ import annotations

from sparda_core.kernels.pool.tiles import SMS

#: Entries of one tensor-core product; tiles that are under way at once; most parts of a row's entries; and programs
#: that an SM is given where rows are few.
TILE, STAGES, MOST_SPLITS, PROGRAMS_PER_SM = 64, 4, 64, 6
#: Programs of one SM at the shape of MiniCPM4.1-8B: 72 KiB of shared memory each (triton 3.6, sm_90).
RESIDENT_PER_SM = 3


def scratch_bytes(*, places: int, q_heads: int, entries: int) -> int:
    """Bytes of a QueryScratch: logits of every entry, and each split's peak and total, in float32."""
    return 4 * places * q_heads * (entries + 2 * MOST_SPLITS)


def split_entries(held: int, rows: int, sms: int = SMS) -> int:
    """Entries that one program takes, a multiple of TILE, so that there are PROGRAMS_PER_SM within MOST_SPLITS.

    held is the most entries of a row, rows is places times KV heads.
    """
    splits = min(MOST_SPLITS, max(1, -(-PROGRAMS_PER_SM * sms // rows)))
    return max(1, -(-held // (splits * TILE))) * TILE
