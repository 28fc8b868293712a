"""The copy kernel with a log: on which SM each thread block sat, and when each of its round trips ended.

The same runs, loads and stores as `kernels/gather/gpu.py` in one part; besides, one thread of each thread block writes
what the device's clock says.
"""

# Triton kernels take no annotations, and are told where everything lies.
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sparda_core.kernels.clock.gpu import clock_ns, sm_number
from sparda_core.kernels.device import INTERPRETED
from sparda_core.kernels.gather.gpu import _fetch, _ids_of, _put, block_words, copy_options

#: Times that a thread block's log has room for, besides its first words; later ones are left out.
ROOM = 1024
#: First words of a thread block's log: SM + 1 (0: it never ran), turns, end.
_HEAD = 3
WORDS = _HEAD + ROOM


@triton.jit
def _hold_kernel(out, hold_ns, BULK: tl.constexpr, INTERPRETED: tl.constexpr):
    """Take a whole SM, say which and when, and keep it for a while."""
    pid = tl.program_id(0)
    begin = clock_ns(pid, INTERPRETED)
    tl.store(out + pid * 2, begin)
    tl.store(out + pid * 2 + 1, sm_number(pid, INTERPRETED).to(tl.int64))
    # Live values that fill the registers, as those of a copy do.
    held = (tl.arange(0, BULK) + pid).to(tl.float32)
    now = begin
    looks = 0
    while (now - begin < hold_ns) & (looks < (1 << 16)):
        held = held * 0.5 + 1.0
        looks += 1
        now = clock_ns(looks, INTERPRETED)
    tl.store(out + pid * 2, begin + tl.sum((held < 0).to(tl.int64), axis=0))


@triton.jit
def _logged_kernel(
    source, target, source_ids, target_ids, count, most, log, s_log, s_source, s_target,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, LOADS: tl.constexpr,
    STORES: tl.constexpr, HEAD: tl.constexpr, ROOM: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    own = log + pid * s_log
    tl.store(own, sm_number(pid, INTERPRETED).to(tl.int64) + 1)
    blocks = tl.minimum(tl.load(count), most)
    runs = blocks * PER
    step = tl.num_programs(0) * ROWS
    r_0 = pid * ROWS + tl.arange(0, ROWS)
    s_0, t_0 = _ids_of(source_ids, target_ids, r_0, runs, PER)
    b_0, c_0 = _fetch(source, source, s_0, r_0, runs, s_source, WORDS, RUN, PER, 1, LOADS)
    turn = 0
    for _ in range(pid * ROWS, runs, step):
        tl.store(own + HEAD + turn, clock_ns(turn, INTERPRETED), mask=turn < ROOM)
        n_0 = r_0 + step
        s_0, u_0 = _ids_of(source_ids, target_ids, n_0, runs, PER)
        _put(target, b_0, c_0, t_0, r_0, runs, s_target, WORDS, RUN, PER, 1, STORES, False)
        b_0, c_0 = _fetch(source, source, s_0, n_0, runs, s_source, WORDS, RUN, PER, 1, LOADS)
        t_0 = u_0
        r_0 = n_0
        turn += 1
    tl.store(own + 1, turn.to(tl.int64))
    tl.store(own + 2, clock_ns(turn, INTERPRETED))


class Log:
    """Logs of a copy of `ctas` thread blocks that keep `in_flight_bytes` under way each.

    words  int64 [most thread blocks, WORDS] to write into; None: memory of its own, which no capture may ask for
    """

    def __init__(
        self, ctas: int, in_flight_bytes: int, device: torch.device, words: torch.Tensor | None = None
    ) -> None:
        self.ctas, self.in_flight_bytes = ctas, in_flight_bytes
        self.words = torch.zeros(ctas, WORDS, dtype=torch.int64, device=device) if words is None else words[:ctas]

    def clear(self) -> None:
        """Nothing ran yet."""
        self.words.zero_()

    def told(self, *, every: int = 1) -> dict[str, Any]:
        """SM, turns, start, end, and time after the start at which each turn began, of each thread block.

        every  of the turns' times, one in so many is kept
        """
        words = self.words.cpu()
        turns = [int(n) for n in words[:, 1]]
        return {
            "sms": [int(n) - 1 for n in words[:, 0]], "turns": turns, "ends": [int(n) for n in words[:, 2]],
            "starts": [int(n) for n in words[:, _HEAD]],
            "times": [
                (words[cta, _HEAD : _HEAD + min(count, ROOM) : every] - words[cta, _HEAD]).tolist()
                for cta, count in enumerate(turns)
            ],
        }  # fmt: skip


def logged_gather(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    count: torch.Tensor, log: Log,
) -> None:  # fmt: skip
    """As `gather_blocks` for plain blocks, with as many thread blocks and bytes in flight as the log says."""
    options = copy_options(source, target, log.in_flight_bytes)
    for plain in ("PARTS", "HALVES", "NATIVE"):
        del options[plain]
    words, slots = block_words(source), block_words(target)
    _logged_kernel[(log.ctas,)](
        words, slots, source_ids, target_ids, count, source_ids.shape[0], log.words, log.words.stride(0),
        words.stride(0), slots.stride(0), HEAD=_HEAD, ROOM=ROOM, INTERPRETED=INTERPRETED, **options,
    )  # fmt: skip


def census(out: torch.Tensor, hold_ns: int) -> None:
    """Thread blocks that take a whole SM each as soon as they find one; int64 [n, 2]: when, and which."""
    _hold_kernel[(out.shape[0],)](out, hold_ns, BULK=32 * 1024, INTERPRETED=INTERPRETED, num_warps=32)

