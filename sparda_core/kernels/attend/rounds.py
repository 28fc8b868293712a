"""What a cut of decode attention takes, by the rounds in which a GPU takes its thread blocks in. Free of torch.

Times are in turns: device memory delivers a tile to every multiprocessor in one, 0.92 us on an H200 (32 KiB of keys and
values each). Other GPUs were not timed. Where memory gives a multiprocessor less than there, a turn is longer and what
lies between rounds, or before a piece's first tile, is a smaller part of one than is said here.
"""

from __future__ import annotations

#: Fitted to 356 cuts timed on an H200 on 30 Nov 2026 (benchmarks/results/2026-11-30-attention-rounds-h200.json, and
#: attention of `sparda calibrate`): half are told within 2 %, nine of ten within 6 %. What counts: of the cuts timed
#: for 20 to 256 rows the one chosen takes 0.1 % longer than the best on average, 1.4 % at most.
#: Turns that a tile takes a thread block by itself, and each of those that are together on a multiprocessor.
_ALONE, _TOGETHER = 0.75, 0.5
#: How sharply the slower of two bounds alone decides.
_BEND = 4
#: What is lost between two rounds: thread blocks that began together end together, and the next ones begin anew.
_BETWEEN = 3
#: Thread blocks of a last round, as a share of the multiprocessors, wait for fewer ends of the round before: the power
#: of that share by which they take less, and the share below which it makes no difference.
_EARLIER, _FEW = 0.45, 0.04
#: What one thread block more on every multiprocessor costs: its beginning, and its part in the sum.
_START = 2.25


def turns(pairs: int, tiles: int, splits: int, *, sms: int, ctas_per_sm: int, left: float) -> float:
    """What `pairs` lists of `tiles` tiles take in `splits` pieces each, less what every cut takes.

    A list that is cut leaves a result of each piece, to be read again: as many bytes as `left` tiles.

    `sms` multiprocessors take in as many thread blocks as they hold, `ctas_per_sm` each: a round. Others follow as
    those end. All rounds but the last are full and draw all that memory gives; the last does so unless its pieces are
    too long, or too many of them together on one multiprocessor while others have fewer: in one round no more than must
    be, in a later one as many as fit, for those of one multiprocessor end at the same time.
    """
    room, ctas, each = sms * ctas_per_sm, pairs * splits, -(-tiles // splits)
    rounds = -(-ctas // room)
    flows = pairs * tiles / sms
    full = min((rounds - 1) * ctas_per_sm * each, flows)
    together = -(-ctas // sms) if rounds == 1 else ctas_per_sm
    longest = each * max(_ALONE, _TOGETHER * together)
    if rounds > 1:
        longest *= min(1.0, max(_FEW, (ctas - (rounds - 1) * room) / sms)) ** _EARLIER
    last: float = ((flows - full) ** _BEND + longest**_BEND) ** (1 / _BEND)
    parts = left * ctas / sms if splits > 1 else 0.0
    return full + last + parts + _BETWEEN * (rounds - 1) + _START * min(ctas, room) / sms
