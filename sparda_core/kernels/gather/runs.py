"""How a copy kernel cuts blocks into runs for its threads, and which settings of it can work. Free of torch."""

from __future__ import annotations

import attrs

from sparda_core.errors import ConfigError

#: A thread block's registers hold what it has in flight: 1024 threads x 128 bytes.
MOST_IN_FLIGHT = 128 * 2**10
LEAST_IN_FLIGHT = 2**10
MOST_CTAS = 1024
_WORD = 4
#: Fewest bytes in flight that are cut into parts: a thread moves 16 bytes of each part, or more.
_LEAST_SPLIT = 64 * 2**10
#: Shortest run that is worth a lane's address of its own, in words.
_LEAST_RUN = 64


@attrs.frozen(kw_only=True)
class CopyTuning:
    """Choices that change only how long a copy takes.

    parts  1, 2 or 4: how the bytes in flight are cut, so that one part is stored while the others load
    warps  of a thread block; None: as many as its bytes in flight keep busy
    warm   bytes between lines of the next runs that are asked for ahead (for their addresses' translations, or, at 128,
           for their values); 0: none. Plain copies in one part only
    """

    parts: int = 1
    warps: int | None = None
    warm: int = 0


#: For float8: one half is widened while the other loads, and half the warps have twice the registers each. The fastest
#: that was measured on an H200; loads of 16 bytes a thread in 32 warps took more than twice as long.
FLOAT8_TUNING = CopyTuning(parts=2, warps=16)


@attrs.frozen(kw_only=True)
class Runs:
    """One part of a thread block's registers: `rows` runs of `run` words each, loaded, then on their way.

    words   32-bit words of a block (of its K, where K and V are cut alike)
    run     words of one run, a power of two; `per_block` of them cover a block, the last perhaps in part
    rows    runs of one part, a power of two
    parts   of the registers: one is stored and filled again while the others load
    warps   warps of a thread block
    """

    words: int
    run: int
    rows: int
    parts: int
    warps: int

    @property
    def per_block(self) -> int:
        """Runs of a block."""
        return -(-self.words // self.run)


def cut_runs(block_bytes: int, in_flight_bytes: int, halves: int = 1, tuning: CopyTuning | None = None) -> Runs:
    """Runs for blocks of `block_bytes` with `in_flight_bytes` under way in each thread block.

    With halves=2 the runs cut K and V of a block alike, and each step takes the same run of both. Fewer bytes
    in flight than 64 KiB stay whole.
    Raises ConfigError for blocks that are not whole 16-byte pieces and for bytes that no thread block can hold.
    """
    if block_bytes < 16 or block_bytes % (16 * halves):
        raise ConfigError(
            f"a block has {block_bytes} bytes; copies move 16 bytes a thread: want a multiple of {16 * halves}"
        )
    check_in_flight(in_flight_bytes)
    tuning = tuning or CopyTuning()
    if tuning.parts not in (1, 2, 4):
        raise ConfigError(f"parts={tuning.parts!r} must be 1, 2 or 4")
    parts = tuning.parts if in_flight_bytes >= _LEAST_SPLIT else 1
    words, flight = block_bytes // _WORD // halves, in_flight_bytes // parts // _WORD // halves
    # The largest power of two that divides a block leaves no lane idle.
    run = min(max(words & -words, min(_LEAST_RUN, 1 << (words - 1).bit_length())), flight)
    warps = tuning.warps if tuning.warps and in_flight_bytes >= _LEAST_SPLIT else copy_warps(in_flight_bytes)
    return Runs(words=words, run=run, rows=flight // run, parts=parts, warps=warps)


def copy_warps(in_flight_bytes: int) -> int:
    """Warps of a copy's thread block: 64 to 128 bytes a thread."""
    return max(1, min(32, in_flight_bytes // 2048 if in_flight_bytes <= 16 * 2**10 else in_flight_bytes // 4096))


def check_ctas(ctas: int) -> None:
    """Raise ConfigError unless a grid may have that many thread blocks."""
    if isinstance(ctas, bool) or not isinstance(ctas, int) or not 1 <= ctas <= MOST_CTAS:
        raise ConfigError(f"ctas={ctas!r} must be an integer from 1 to {MOST_CTAS}")


def check_in_flight(in_flight_bytes: int) -> None:
    """Raise ConfigError unless a thread block may have so many bytes in flight."""
    if in_flight_bytes & (in_flight_bytes - 1) or not LEAST_IN_FLIGHT <= in_flight_bytes <= MOST_IN_FLIGHT:
        raise ConfigError(
            f"in_flight_bytes={in_flight_bytes} must be a power of two from {LEAST_IN_FLIGHT} to {MOST_IN_FLIGHT}: "
            "registers hold what a thread block has in flight"
        )
