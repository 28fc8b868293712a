"""The sections of a GPU profile. Field metadata holds the unit that a profile file must state."""

from __future__ import annotations

from typing import Any

import attrs

from sparda_core.simulator.quantity import PieceCurve, Quantity, Slowdown


def number(unit: str) -> Any:
    """A field that holds a Quantity in `unit`."""
    return attrs.field(metadata={"unit": unit})


@attrs.frozen(kw_only=True)
class Memory:
    """Sizes, and rates read + written.

    kernel_bytes_per_s  what one compute kernel draws; hbm_bytes_per_s is what all together can draw
    reserved_bytes      context, graphs, workspaces, activations
    """

    hbm_bytes: Quantity = number("B")
    reserved_bytes: Quantity = number("B")
    host_bytes: Quantity = number("B")
    hbm_bytes_per_s: Quantity = number("B/s")
    kernel_bytes_per_s: Quantity = number("B/s")
    host_bytes_per_s: Quantity = number("B/s")


@attrs.frozen(kw_only=True)
class Compute:
    """SMs, and the dense bf16 rate that a large product reaches."""

    sms: Quantity = number("1")
    flop_per_s: Quantity = number("FLOP/s")


@attrs.frozen(kw_only=True)
class Launch:
    """Seconds from one kernel to the next in a graph; of host time for a launch; from graph to graph."""

    graph_s: Quantity = number("s")
    eager_s: Quantity = number("s")
    step_s: Quantity = number("s")


@attrs.frozen(kw_only=True)
class Link:
    """The host link. Rates are payload, one way; both_ways is each way with both busy."""

    generation: Quantity = number("1")
    lanes: Quantity = number("1")
    h2d_bytes_per_s: Quantity = number("B/s")
    d2h_bytes_per_s: Quantity = number("B/s")
    both_ways_bytes_per_s: Quantity = number("B/s")

    @property
    def crosstalk(self) -> float:
        """Bytes that one byte takes of the other direction (requests, acknowledgements)."""
        return max(0.0, self.h2d_bytes_per_s.value / self.both_ways_bytes_per_s.value - 1)

    def scaled(self, by: float) -> Link:
        """The same link, faster."""
        names = ("h2d_bytes_per_s", "d2h_bytes_per_s", "both_ways_bytes_per_s")
        return attrs.evolve(self, **{name: _scaled(getattr(self, name), by) for name in names})


@attrs.frozen(kw_only=True)
class Uva:
    """A gather kernel that reads pinned host memory in place.

    One CTA with q bytes in flight moves q / (t0 + q / b) bytes a second, t0 for lists never seen
    before; CTAs add up until the ceiling.
    """

    ceiling_bytes_per_s: Quantity = number("B/s")
    in_flight_bytes: Quantity = number("B")
    round_trip_s: Quantity = number("s")
    cta_bytes_per_s: Quantity = number("B/s")
    compute_slowdown: Slowdown
    copy_slowdown: Slowdown

    def bytes_per_s(self, ctas: int) -> float:
        """Rate of `ctas` thread blocks with nothing beside them."""
        in_flight = self.in_flight_bytes.value
        one = in_flight / (self.round_trip_s.value + in_flight / self.cta_bytes_per_s.value)
        return min(ctas * one, self.ceiling_bytes_per_s.value)

    def scaled(self, by: float) -> Uva:
        """The ceiling of a link that is `by` times as fast; round trips stay."""
        return attrs.evolve(self, ceiling_bytes_per_s=_scaled(self.ceiling_bytes_per_s, by))


@attrs.frozen(kw_only=True)
class CopyEngine:
    """Copies that the host lists: a fixed cost per call, and one per piece. Holds no SMs."""

    call_s: Quantity = number("s")
    whole_bytes_per_s: Quantity = number("B/s")
    pieces: PieceCurve
    compute_slowdown: Slowdown

    def bytes_per_s(self, piece_bytes: float, link_bytes_per_s: float) -> float:
        """Rate of many pieces of this size in one call over a link of this speed."""
        extra_s = self.pieces.piece_s(piece_bytes, self.whole_bytes_per_s.value)
        return piece_bytes / (extra_s + piece_bytes / link_bytes_per_s)


@attrs.frozen(kw_only=True)
class CpuGather:
    """Host threads gather into one pinned buffer, then one copy (InfiniGen's way)."""

    call_s: Quantity = number("s")
    gather_bytes_per_s: Quantity = number("B/s")


def _scaled(quantity: Quantity, by: float) -> Quantity:
    return quantity.with_value(quantity.value * by, "another link was asked for")
