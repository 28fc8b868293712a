"""How many thread blocks of decode attention a multiprocessor of a GPU holds at once. Free of torch."""

from __future__ import annotations

import attrs

KIB = 2**10
#: Shared memory that the driver keeps of each thread block, compute capability 8.0 to 12.0 (CUDA programming guide).
_KEPT_BYTES = KIB
#: 32-bit registers of a multiprocessor of these.
_REGISTERS = 64 * KIB
#: The most registers of a thread that the compiler gives a thread block of four warps (64 to 151 by shape, compiled for
#: 8.0 and 9.0). Where it gives fewer, one more may find room than is said here.
_THREAD_REGISTERS = 152


@attrs.frozen(kw_only=True)
class Sms:
    """Multiprocessors of one GPU.

    count         how many
    shared_bytes  shared memory of each of them, all of it
    """

    count: int
    shared_bytes: int


#: 132 multiprocessors of 228 KiB.
H200 = Sms(count=132, shared_bytes=228 * KIB)


def power_of_two(size: int, least: int = 1) -> int:
    """The next one from `size` on: tiles have no other widths."""
    return max(least, 1 << (size - 1).bit_length())


def shared_bytes(*, tokens: int, depth: int, group: int, head_dim: int, value_bytes: float) -> int:
    """Shared memory of one thread block: K and V of `depth` tiles, queries of `group` heads and their weights.

    As compiled for 8.0 and 9.0, to 1 KiB; with groups of more than 32 heads 9.0 takes more, but registers decide there.
    """
    wide, heads = power_of_two(head_dim, 16), power_of_two(group, 16)
    places_bytes = 64 + 8 * tokens  # of each token's block, or of biases
    return int((2 * depth * tokens * wide + heads * (wide + tokens)) * value_bytes) + places_bytes


def ctas_per_sm(own_bytes: int, warps: int, sms: Sms) -> int:
    """Thread blocks of so much shared memory and so many warps that a multiprocessor holds, 1 at least.

    Of attention's usual tiles (16 KiB of keys, two deep, four warps) an H200 holds 3, an A100 2, an RTX 4090 1.
    """
    by_memory = sms.shared_bytes // (own_bytes + _KEPT_BYTES)
    return max(1, min(by_memory, _REGISTERS // (32 * warps * _THREAD_REGISTERS)))
