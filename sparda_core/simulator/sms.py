"""SM slots: thread blocks hold SMs, whole ones, and keep them to the end. Placed by TPC, a pair of SMs.

A copy kernel's thread block needs an SM that no compute kernel uses: one of a TPC that is wholly free if
there is one, else of one that is half free. Blocks that start together (a cluster) take whole TPCs. A
compute kernel holds the SMs of its first wave, spread over the TPCs; what it does not get there, more waves
make up for.

Measured on one H200 (132 SMs, 66 TPCs) with matrix products of 128 thread blocks in clusters of 2. Copies that
were there first spread: products keep their speed beside two lone blocks (64 TPCs stay whole) and take
a second wave beside three. Copies that come while a product runs find the four SMs that it leaves: up to four
whole blocks, or thirty-two of an eighth, cost it no wave, and the fifth waits for its end. Copies that become ready
together with a compute kernel, as in a captured step, are placed first, one a TPC: 1,197 of 1,197 recorded layers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.profile import Grid

#: SMs of a TPC.
PAIR = 2
#: The TPC of each placed thread block of a copy kernel.
Tpcs = tuple[int, ...]


@attrs.frozen
class Seat:
    """What a compute kernel gets: `waves` (0: no SM at all), and how many SMs it holds."""

    waves: int
    sms: int


@attrs.frozen(cache_hash=True)
class _Held:
    """Who holds what: free SMs of each TPC, compute kernels aside, and what the compute kernel holds of each.

    moves  what was done from here before, and what came of it: the same few moves come again and again
    """

    free: tuple[int, ...]
    taken: tuple[int, ...]
    compute: bool
    moves: dict[Hashable, tuple[_Held, Any]] = attrs.field(factory=dict, eq=False)

    def left(self) -> list[int]:
        """Free SMs of each TPC."""
        return [free - held for free, held in zip(self.free, self.taken, strict=True)]


class SmPool:
    """The SMs of one device: what copies hold TPC by TPC, and the one compute kernel that runs beside them.

    sms  how many; an odd one is a TPC of its own, of one SM
    """

    def __init__(self, sms: int) -> None:
        if sms < 1:
            raise ProfileError(f"sms={sms} must be >= 1")
        tpcs = (PAIR,) * (sms // PAIR) + (1,) * (sms % PAIR)
        self.sms = sms
        self._known: dict[_Held, _Held] = {}
        self._nobody = self._keep(tpcs, (0,) * len(tpcs), compute=False)
        self._held = self._nobody

    @property
    def places(self) -> Hashable:
        """Equal where a compute kernel that starts now would get the same SMs; ask with none running."""
        return self._held

    @property
    def compute_sms(self) -> int:
        """SMs that the compute kernel holds."""
        return sum(self._held.taken)

    @property
    def copy_sms(self) -> int:
        """SMs that copy kernels hold."""
        return self.sms - sum(self._held.free)

    def clear(self) -> None:
        """Nobody holds anything: a step begins, whatever became of the one before."""
        self._held = self._nobody

    def seat(self, grid: Grid) -> Seat:
        """What a compute kernel would get if it started now, with no other compute kernel beside it."""
        done = self._held.moves.get(grid)
        if done is None:
            free = self._held.free
            done = self._held.moves[grid] = self._held, _seat(grid, free.count(PAIR), free.count(1))
        seat: Seat = done[1]
        return seat

    def take(self, grid: Grid) -> Seat:
        """Start a compute kernel; `waves` is 0 and nothing is held where no SM is free."""
        assert not self._held.compute, "a compute kernel runs already"
        seat: Seat = self._move(("take", grid), self._take, grid)
        return seat

    def give(self) -> None:
        """End the compute kernel, if one runs."""
        self._move("give", self._give)

    def place(self, ctas: int, cluster: int, spare: Grid | None = None) -> Tpcs:
        """Place as many of `ctas` copy blocks as fit, cluster by cluster; the TPC of each placed block.

        spare  a compute kernel that must find an SM afterwards
        """
        tpcs: Tpcs = self._move((ctas, cluster, spare), self._place, ctas, cluster, spare)
        return tpcs

    def release(self, tpcs: Tpcs) -> None:
        """Give back what `place` returned."""
        self._move(("release", tpcs), self._release, tpcs)

    def _move(self, key: Hashable, how: Any, *args: Any) -> Any:
        done = self._held.moves.get(key)
        if done is None:
            here = self._held
            done = here.moves[key] = how(*args)
        self._held = done[0]
        return done[1]

    def _keep(self, free: tuple[int, ...], taken: tuple[int, ...], *, compute: bool) -> _Held:
        held = _Held(free, taken, compute)
        return self._known.setdefault(held, held)

    def _take(self, grid: Grid) -> tuple[_Held, Seat]:
        here, seat = self._held, self.seat(grid)
        taken, left = [0] * len(here.free), seat.sms
        # From the lowest TPC: whole ones for a cluster, else one SM of each TPC, then the other.
        for sms in (PAIR,) if grid.cluster > 1 else (1, 1):
            for tpc, free in enumerate(here.free):
                if left >= sms and free - taken[tpc] >= sms:
                    taken[tpc] += sms
                    left -= sms
        return self._keep(here.free, tuple(taken), compute=seat.waves > 0), seat

    def _give(self) -> tuple[_Held, None]:
        free = self._held.free
        return self._keep(free, (0,) * len(free), compute=False), None

    def _place(self, ctas: int, cluster: int, spare: Grid | None) -> tuple[_Held, Tpcs]:
        here, placed = self._held, list[int]()
        while len(placed) < ctas:
            tpcs = _find(here.left(), cluster)
            free = _shifted(here.free, tpcs, -1)
            if not tpcs or (spare is not None and not _seat(spare, free.count(PAIR), free.count(1)).waves):
                break
            here = self._keep(free, here.taken, compute=here.compute)
            placed += tpcs
        return here, tuple(placed)

    def _release(self, tpcs: Tpcs) -> tuple[_Held, None]:
        here = self._held
        return self._keep(_shifted(here.free, tpcs, 1), here.taken, compute=here.compute), None


def waves_alone(grid: Grid, sms: int) -> int:
    """Waves of a grid on an empty device of `sms` SMs; 0 where it never finds a place."""
    return _seat(grid, sms // PAIR, sms % PAIR).waves


def _shifted(free: tuple[int, ...], tpcs: Tpcs, by: int) -> tuple[int, ...]:
    new = list(free)
    for tpc in tpcs:
        new[tpc] += by
    return tuple(new)


def _find(left: list[int], cluster: int) -> Tpcs:
    """TPCs for one cluster of copy blocks, from the highest; empty where it does not fit.

    left  free SMs of each TPC
    """
    whole = [tpc for tpc in reversed(range(len(left))) if left[tpc] == PAIR]
    if cluster == 1:
        half = [tpc for tpc in reversed(range(len(left))) if left[tpc] == 1]
        return tuple((whole or half)[:1])
    need = math.ceil(cluster / PAIR)
    return tuple(sorted(whole[:need] * PAIR)[:cluster]) if len(whole) >= need else ()


def _seat(grid: Grid, whole: int, half: int) -> Seat:
    """Waves and SMs of the first one with `whole` TPCs wholly and `half` half free."""
    if grid.cluster > 1:
        each = math.ceil(grid.cluster / PAIR)
        groups, places = math.ceil(grid.ctas / grid.cluster), whole // each
        held = min(math.ceil(groups / grid.per_sm), places) * each * PAIR
    else:
        groups, places = grid.ctas, whole * PAIR + half
        held = min(math.ceil(groups / grid.per_sm), places)
    return Seat(math.ceil(groups / (places * grid.per_sm)) if places else 0, held)
