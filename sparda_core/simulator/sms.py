"""SM slots: thread blocks hold SMs, whole ones, and keep them to the end. Placed by TPC, a pair of SMs.

A copy kernel's thread block needs an SM that nothing else uses: one of a TPC that is wholly free if
there is one, else of one that is half free. Blocks that start together (a cluster) take whole TPCs. A
compute kernel holds the SMs of its first wave, spread over the TPCs; what it does not get there, more
waves make up for.

Measured on one H200 (132 SMs, 66 TPCs): matrix products of 128 thread blocks in clusters of 2 keep their
speed beside two lone copy blocks (64 TPCs stay whole) and take a second wave beside three.
"""

from __future__ import annotations

import math

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.profile import Grid

#: SMs of a TPC.
PAIR = 2


@attrs.frozen
class Seat:
    """What a compute kernel gets: `waves` (0: no SM at all), and the SMs it holds."""

    waves: int
    sms: int


class SmPool:
    """The SMs of one device: what copies hold TPC by TPC, and the one compute kernel that runs beside them.

    sms  how many; an odd one is a TPC of its own, of one SM
    """

    def __init__(self, sms: int) -> None:
        if sms < 1:
            raise ProfileError(f"sms={sms} must be >= 1")
        # Free SMs of each TPC, compute kernels aside.
        self._free = [PAIR] * (sms // PAIR) + [1] * (sms % PAIR)
        self._compute: Grid | None = None
        # SMs of each TPC that the compute kernel holds; None until somebody must know which.
        self._taken: list[int] | None = None
        self._seats: dict[tuple[Grid, int, int], Seat] = {}
        self.whole, self.half = sms // PAIR, sms % PAIR
        self.copy_sms = self.compute_sms = 0

    def seat(self, grid: Grid) -> Seat:
        """What a compute kernel would get if it started now, with no other compute kernel beside it."""
        key = (grid, self.whole, self.half)
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = _seat(grid, self.whole, self.half)
        return seat

    def take(self, grid: Grid) -> Seat:
        """Start a compute kernel; `waves` is 0 and nothing is held where no SM is free."""
        assert self._compute is None, "a compute kernel runs already"
        seat = self.seat(grid)
        if seat.waves:
            self._compute, self.compute_sms = grid, seat.sms
        return seat

    def give(self) -> None:
        """End the compute kernel, if one runs."""
        self._compute, self._taken, self.compute_sms = None, None, 0

    def place(self, ctas: int, cluster: int, spare: Grid | None = None) -> list[int]:
        """Place as many of `ctas` copy blocks as fit, cluster by cluster; the TPC of each placed block.

        spare  a compute kernel that must find an SM afterwards
        """
        self._spell_out()
        placed: list[int] = []
        while len(placed) < ctas:
            tpcs = self._find(cluster)
            if tpcs is None:
                break
            self._shift(tpcs, -1)
            if spare is not None and not self.seat(spare).waves:
                self._shift(tpcs, 1)
                break
            placed += tpcs
        return placed

    def release(self, tpcs: list[int]) -> None:
        """Give back what `place` returned."""
        self._spell_out()
        self._shift(tpcs, 1)

    def _find(self, cluster: int) -> list[int] | None:
        """TPCs for one cluster, the highest first; None where it does not fit."""
        taken = self._taken or [0] * len(self._free)
        left = [free - held for free, held in zip(self._free, taken, strict=True)]
        # Compute kernels fill from the lowest TPC, copies from the highest.
        whole = [tpc for tpc in reversed(range(len(left))) if left[tpc] == PAIR]
        if cluster == 1:
            half = [tpc for tpc in reversed(range(len(left))) if left[tpc] == 1]
            return (whole or half)[:1] or None
        need = math.ceil(cluster / PAIR)
        return sorted(whole[:need] * PAIR)[:cluster] if len(whole) >= need else None

    def _shift(self, tpcs: list[int], by: int) -> None:
        for tpc in tpcs:
            self._free[tpc] += by
        self.whole, self.half = self._free.count(PAIR), self._free.count(1)
        self.copy_sms -= by * len(tpcs)

    def _spell_out(self) -> None:
        """Which SMs the compute kernel holds: decided by what was free when it started, so before that changes."""
        if self._compute is None or self._taken is not None:
            return
        self._taken, left = [0] * len(self._free), self.compute_sms
        rounds = (PAIR,) if self._compute.cluster > 1 else (1, 1)
        for sms in rounds:
            for tpc, free in enumerate(self._free):
                if left >= sms and free - self._taken[tpc] >= sms:
                    self._taken[tpc] += sms
                    left -= sms


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
