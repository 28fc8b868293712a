"""The section `kernels` of a profile: what kernels of a step take beyond bytes, FLOPs and launch gaps."""

from __future__ import annotations

import math
from typing import Any

import attrs

from sparda_core.simulator.quantity import Quantity, RowsCurve
from sparda_core.work import Work

#: The kind whose number is the operation's, however many kernels it launches: none where the diff chooses along.
_CHOICE = "select"
#: The kind whose number was timed behind others of its kind, in a graph of a layer's products.
_PRODUCT = "product"


def _seconds(low: float = 1e-7) -> Any:
    return attrs.field(default=None, metadata={"unit": "s", "plausible": (low, 1e-4), "zero": True})


def _rate() -> Any:
    return attrs.field(default=None, metadata={"unit": "B/s", "plausible": (1e9, 5e13)})


@attrs.frozen(kw_only=True)
class Kernels:
    """Seconds that kernels take beyond their bytes, their FLOPs and their launch gaps, by kind of operation.

    KIND_s     of one launch; of `select` of all of them. The way into its loads and out of its stores, and
               what it does one after the other in between: round trips of a search for the k-th largest score, of a
               diff through its tables, partial results of attention. A kind without a number takes none. `product` is
               a launch of a vendor's library by itself, whatever operation it belongs to; of project, output, mlp and
               head the mean over their launches, small kernels and products
    KIND_rows  of the whole operation by rows, in place of KIND_s: where a library changes its tiles with them
    KIND_searched  more for the candidates that a thread block searches, by their number (Work.searched) in place of
               tokens
    KIND_bytes_per_s  what such a kernel reads at best, once under way; None: memory.kernel_bytes_per_s
    KIND_passed  bytes of reading that a byte takes which one launch leaves for the next (Work.passed_bytes)
    KIND_ramp_s  time constant with which it gets there: it loses as much, less where it ends before
    turn_s     of a launch behind another kernel, beyond one behind itself, whose code and addresses are at hand
    KIND_round_s  of every further round of thread blocks that the SMs take in, of a kernel that states how many of its
               thread blocks one SM holds: they begin anew, and those that began together end together
    """

    score_s: Quantity | None = _seconds()
    select_s: Quantity | None = _seconds()
    diff_s: Quantity | None = _seconds()
    attend_s: Quantity | None = _seconds()
    product_s: Quantity | None = _seconds()
    project_s: Quantity | None = _seconds()
    output_s: Quantity | None = _seconds()
    mlp_s: Quantity | None = _seconds()
    head_s: Quantity | None = _seconds()
    embed_s: Quantity | None = _seconds()
    turn_s: Quantity | None = _seconds(1e-9)
    score_bytes_per_s: Quantity | None = _rate()
    attend_bytes_per_s: Quantity | None = _rate()
    score_passed: Quantity | None = attrs.field(default=None, metadata={"unit": "1", "plausible": (0.1, 10)})
    score_ramp_s: Quantity | None = _seconds(1e-9)
    attend_ramp_s: Quantity | None = _seconds(1e-9)
    attend_round_s: Quantity | None = _seconds(1e-9)
    attend_rows: RowsCurve | None = None
    select_searched: RowsCurve | None = None
    diff_searched: RowsCurve | None = None
    select_rows: RowsCurve | None = None
    diff_rows: RowsCurve | None = None
    project_rows: RowsCurve | None = None
    output_rows: RowsCurve | None = None
    mlp_rows: RowsCurve | None = None
    head_rows: RowsCurve | None = None
    proxy_rows: RowsCurve | None = None

    def own_s(self, kind: str, work: Work, tokens: int, *, in_turn: bool = True) -> float:
        """Of an operation of this kind; `in_turn` behind other kernels, as in a step."""
        turn_s = self._number("turn_s") if in_turn and kind != _PRODUCT else 0.0
        searched = getattr(self, f"{kind}_searched", None)
        searched_s = searched.at(work.searched) if searched is not None else 0.0
        return self._least_s(kind, work, tokens) + searched_s + work.launches * turn_s

    def bytes_per_s(self, kind: str, usual: float) -> float:
        """What a kernel of this kind reads at best; `usual` where the profile does not tell kinds apart."""
        return self._number(f"{kind}_bytes_per_s") or usual

    def reads(self, kind: str, work: Work) -> float:
        """Bytes of reading that take as long as the device memory that it asks for."""
        return work.hbm_bytes + work.passed_bytes * ((self._number(f"{kind}_passed") or 1.0) - 1)

    def begins_s(self, kind: str, flows_s: float) -> float:
        """What a kernel whose bytes take so long loses until it reads as fast as it can."""
        ramp_s = self._number(f"{kind}_ramp_s")
        return -ramp_s * math.expm1(-flows_s / ramp_s) if ramp_s else 0.0

    def rounds_s(self, kind: str, work: Work, sms: int) -> float:
        """What rounds of thread blocks beyond the first one take."""
        room = work.ctas_per_sm * sms
        rounds = -(-work.ctas // room) if work.ctas_per_sm > 1 else 1
        return self._number(f"{kind}_round_s") * max(0, rounds - 1)

    def _least_s(self, kind: str, work: Work, tokens: int) -> float:
        curve = getattr(self, f"{kind}_rows", None)
        launched = 1 if kind == _CHOICE else work.launches
        if curve is not None:
            return float(curve.at(tokens)) if launched else 0.0
        return self._number(f"{kind}_s") * launched

    def _number(self, name: str) -> float:
        """0 where the profile has none of this name."""
        found = getattr(self, name, None)
        return found.value if isinstance(found, Quantity) else 0.0
