"""What a cut of decode attention takes, by the rounds in which a GPU takes its thread blocks in. Free of torch.

Times are in turns: device memory delivers a tile to every multiprocessor in one, 0.95 us on an H200 (32 KiB of keys and
values each). Other GPUs were not timed. Where memory gives a multiprocessor less than there, a turn is longer and what
lies between rounds, or before a piece's first tile, is a smaller part of one than is said here.
"""

from __future__ import annotations

#: The constants of `turns`, fitted to 48 cuts of MiniCPM4.1-8B timed on an H200 on 30 Nov 2026: 15 at 96 blocks and 4
#: at 512 of `sparda calibrate`, each within 2 %, and four-warp cuts of at most 32 lists by benchmarks/gpu/attend_sweep.
#: What a thread block by itself takes for a tile; and beside few others in a later round, in which they come in threes
#: to the multiprocessors that end first.
_ALONE, _LATE = 0.82, 1.46
#: How sharply the slower of two bounds alone decides.
_BEND = 4
#: What is lost between two rounds: thread blocks that began together end together, and the next ones begin anew.
_ROUND = 4.3
#: What one thread block more on every multiprocessor costs: its beginning, and its part in the sum.
_START = 1.8


def turns(pairs: int, tiles: int, splits: int, sms: int, ctas_per_sm: int) -> float:
    """What `pairs` lists of `tiles` tiles take in `splits` pieces each, less what every cut takes.

    `sms` multiprocessors take in as many thread blocks as they hold, `ctas_per_sm` each: a round. Others follow as
    those end. All rounds but the last are full and draw all that memory gives; the last does so unless its pieces are
    too few or too long for that.
    """
    room, ctas, each = sms * ctas_per_sm, pairs * splits, -(-tiles // splits)
    rounds = -(-ctas // room)
    flows = pairs * tiles / sms
    full = min((rounds - 1) * ctas_per_sm * each, flows)
    alone = each * (_ALONE if rounds == 1 else _LATE)
    last: float = ((flows - full) ** _BEND + alone**_BEND) ** (1 / _BEND)
    return full + last + _ROUND * (rounds - 1) + _START * min(ctas, room) / sms
