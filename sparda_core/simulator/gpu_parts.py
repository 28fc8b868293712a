"""The sections of a GPU profile. Field metadata holds the unit a profile file must state, and what is plausible."""

from __future__ import annotations

from typing import Any

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.quantity import BendCurve, PieceCurve, Quantity, WaveShare

#: Payload of 16 lanes one way at 512-byte packets, 24 bytes of overhead each (generation 6: 256-byte flits,
#: 16 bytes each); bytes/s by PCIe generation.
PCIE_PAYLOAD_BYTES_PER_S = {3: 15.0e9, 4: 30.1e9, 5: 60.2e9, 6: 114.0e9}
#: What NVLink-C2C is sold with, one way. No measurement comes near; only the bound of a profile.
C2C_BYTES_PER_S = 450e9
LANES = (1, 2, 4, 8, 16)


def number(unit: str, low: float, high: float, *, zero: bool = False) -> Any:
    """A field that holds a Quantity in `unit`; lint refuses what lies outside low to high (but 0, where allowed)."""
    return attrs.field(metadata={"unit": unit, "plausible": (low, high), "zero": zero})


def pcie_payload(generation: float, lanes: float) -> float:
    """Bytes a second one way that a PCIe link carries at best; raises ProfileError for a link that does not exist."""
    if generation not in PCIE_PAYLOAD_BYTES_PER_S:
        known = ", ".join(map(str, PCIE_PAYLOAD_BYTES_PER_S))
        raise ProfileError(f"link.generation={generation:g} is unknown; known: {known}")
    if lanes not in LANES:
        raise ProfileError(f"link.lanes={lanes:g} must be one of: {', '.join(map(str, LANES))}")
    return PCIE_PAYLOAD_BYTES_PER_S[int(generation)] * lanes / 16


@attrs.frozen(kw_only=True)
class Memory:
    """Sizes, and rates read + written.

    kernel_bytes_per_s  what one compute kernel draws; hbm_bytes_per_s is what all together can draw
    host_bytes_per_s    of host memory, whatever crosses it: a byte over the link counts once, by all GPUs of the host
    link_hbm_weight     bytes of device memory's time that one byte over the link takes from the kernels beside it
    reserved_bytes      context, graphs, workspaces, activations
    """

    hbm_bytes: Quantity = number("B", 1e9, 2e12)
    reserved_bytes: Quantity = number("B", 1e6, 1e11, zero=True)
    host_bytes: Quantity = number("B", 1e9, 1e14)
    hbm_bytes_per_s: Quantity = number("B/s", 1e10, 5e13)
    kernel_bytes_per_s: Quantity = number("B/s", 1e10, 5e13)
    host_bytes_per_s: Quantity = number("B/s", 1e9, 5e12)
    link_hbm_weight: Quantity = number("1", 0.1, 20, zero=True)


@attrs.frozen(kw_only=True)
class Compute:
    """SMs, the dense bf16 rate that a large product reaches, and the grid of a product by a vendor's library.

    product_ctas     thread blocks of a product of few tokens, one an SM
    product_cluster  how many of them start together
    wave_share       what a second wave of that grid costs
    ridge_bend       p of (a^p + b^p)^(1/p), the time of a kernel whose FLOPs alone take a and whose bytes alone
                     take b; None: the longer of the two
    """

    sms: Quantity = number("1", 4, 1024)
    flop_per_s: Quantity = number("FLOP/s", 1e12, 2e16)
    product_ctas: Quantity = number("1", 1, 1024)
    product_cluster: Quantity = number("1", 1, 16)
    wave_share: WaveShare
    ridge_bend: Quantity | None = attrs.field(default=None, metadata={"unit": "1", "plausible": (1, 100)})


@attrs.frozen(kw_only=True)
class Launch:
    """Seconds of launching.

    graph_s  from one kernel to the next in a graph
    eager_s  of host time to launch a kernel, or submit a copy
    step_s   to launch a graph: from step to step
    list_s   for a list that the device has written to reach the host: until the host goes on
    cut_s    of the compute lane at a cut: a kernel writes the list into the host's memory, a segment ends and the next
             begins; None: no matter
    segment_s  of host time for a segment of a step: to launch it, after which the device has it, and to mark its end;
             None: as `step_s`
    """

    graph_s: Quantity = number("s", 1e-8, 1e-4)
    eager_s: Quantity = number("s", 1e-7, 1e-3)
    step_s: Quantity = number("s", 1e-7, 1e-2)
    list_s: Quantity = number("s", 1e-7, 1e-2)
    cut_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "s", "plausible": (1e-9, 1e-3), "zero": True}
    )
    segment_s: Quantity | None = attrs.field(default=None, metadata={"unit": "s", "plausible": (1e-7, 1e-2)})


@attrs.frozen(kw_only=True)
class Link:
    """The host link. Rates are payload, one way; both_ways is each way with both busy.

    kind               "pcie", or "c2c" (NVLink-C2C, which has neither generation nor lanes)
    """

    kind: str = attrs.field(default="pcie")
    generation: Quantity | None = attrs.field(default=None, metadata={"unit": "1", "plausible": (3, 6)})
    lanes: Quantity | None = attrs.field(default=None, metadata={"unit": "1", "plausible": (1, 16)})
    h2d_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)
    d2h_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)
    both_ways_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)

    @kind.validator
    def _known(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in ("pcie", "c2c"):
            raise ProfileError(f"link.kind={value!r} must be 'pcie' or 'c2c'")

    def __attrs_post_init__(self) -> None:
        stated = [name for name in ("generation", "lanes") if getattr(self, name) is not None]
        if self.kind == "pcie" and len(stated) < 2:
            raise ProfileError("a link of kind 'pcie' states generation and lanes")
        if self.kind == "c2c" and stated:
            raise ProfileError(f"a link of kind 'c2c' has no {stated[0]}; leave it out")

    @property
    def ceiling_bytes_per_s(self) -> float:
        """Payload one way that no link of this kind exceeds; raises ProfileError for a link that does not exist."""
        if self.generation is None or self.lanes is None:
            return C2C_BYTES_PER_S
        return pcie_payload(self.generation.value, self.lanes.value)

    @property
    def title(self) -> str:
        """What the link is called."""
        if self.generation is None or self.lanes is None:
            return "NVLink-C2C"
        return f"PCIe {self.generation.value:g} x{self.lanes.value:g}"

    @property
    def crosstalk(self) -> float:
        """Bytes that one byte takes of the other direction (requests, acknowledgements)."""
        return max(0.0, self.h2d_bytes_per_s.value / self.both_ways_bytes_per_s.value - 1)

    def scaled(self, by: float) -> Link:
        """The same link, faster."""
        names = ("h2d_bytes_per_s", "d2h_bytes_per_s", "both_ways_bytes_per_s")
        faster: dict[str, Any] = {name: scaled(getattr(self, name), by) for name in names}
        return attrs.evolve(self, **faster)


@attrs.frozen(kw_only=True)
class Uva:
    """A gather kernel that reads pinned host memory in place.

    One CTA with q bytes in flight moves q / (t0 + q / b) bytes a second. t0 is round_trip_s for lists never
    seen before, repeated_round_trip_s for one that was copied before. CTAs add up until the ceiling.
    Beside compute b is beside_bytes_per_s, and the ceiling c bends what n CTAs of rate r reach:
    n r / (1 + (n r / c) ** p) ** (1 / p), with p by beside_bend: the fewer tokens it has, the more softly. That is so
    where the copy was there first. One that comes while a kernel runs gets the SMs that it leaves: b is
    late_bytes_per_s there, and late_bend says p. Beside attention of three thread blocks an SM, whose loads crowd, b is
    crowded_bytes_per_s.

    pairs          what two CTAs on the two SMs of one TPC reach together, by block size; None: twice one
    drag_per_byte  what a byte in flight adds to a kernel beside, as a share of the kernel's time alone
    drag_most_bytes  bytes in flight beyond so many add nothing more
    sm_in_flight_bytes  bytes in flight that one SM's registers have room for: CTAs that keep fewer share an SM
    """

    ceiling_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)
    in_flight_bytes: Quantity = number("B", 1024, 2**20)
    round_trip_s: Quantity = number("s", 1e-7, 1e-4)
    repeated_round_trip_s: Quantity = number("s", 1e-7, 1e-4)
    cta_bytes_per_s: Quantity = number("B/s", 1e9, 1e13)
    beside_bytes_per_s: Quantity = number("B/s", 1e9, 1e13)
    late_bytes_per_s: Quantity = number("B/s", 1e9, 1e13)
    drag_per_byte: Quantity = number("1/B", 1e-9, 1e-6, zero=True)
    drag_most_bytes: Quantity = number("B", 16384, 2**30)
    sm_in_flight_bytes: Quantity = number("B", 1024, 2**20)
    beside_bend: BendCurve
    late_bend: BendCurve
    pairs: PieceCurve | None = None
    crowded_bytes_per_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "B/s", "plausible": (1e9, 1e13)}
    )

    def one_bytes_per_s(
        self, in_flight: float, *, repeated: bool = False, beside: bool = False, late: bool = False
    ) -> float:
        """Rate of one CTA far below the ceiling."""
        t0 = (self.repeated_round_trip_s if repeated else self.round_trip_s).value
        b = self.cta_bytes_per_s.value
        if beside:
            b = (self.late_bytes_per_s if late else self.beside_bytes_per_s).value
        return in_flight / (t0 + in_flight / b)

    def bytes_per_s(
        self, ctas: int, *, in_flight: float = 0.0, cluster: int = 1, piece: float = 0.0, repeated: bool = False,
        beside: bool = False, late: bool = False, tokens: float = 64,
    ) -> float:  # fmt: skip
        """Rate of `ctas` thread blocks; never less with more of them.

        beside     compute of so many `tokens` runs beside them
        late       they came while it did; False: they were there first
        in_flight  bytes that each keeps in flight; 0: the profile's own
        cluster    more than 1: they sit in pairs on TPCs
        piece      bytes of a block; matters to such pairs alone
        """
        each = in_flight or self.in_flight_bytes.value
        one = self.one_bytes_per_s(each, repeated=repeated, beside=beside, late=late)
        one *= self._paired(one, cluster, piece)
        every, ceiling = ctas * one, self.ceiling_bytes_per_s.value
        if not beside:
            return min(every, ceiling)
        return bent(every, ceiling, (self.late_bend if late else self.beside_bend).at(tokens))

    def crowded(self, ctas: int, *, in_flight: float = 0.0, tokens: float = 64) -> float:
        """How many times slower so many thread blocks are beside attention than beside another kernel, >= 1."""
        if self.crowded_bytes_per_s is None:
            return 1.0
        each = in_flight or self.in_flight_bytes.value
        one = each / (self.round_trip_s.value + each / self.crowded_bytes_per_s.value)
        there = bent(ctas * one, self.ceiling_bytes_per_s.value, self.beside_bend.at(tokens))
        return max(1.0, self.bytes_per_s(ctas, in_flight=in_flight, beside=True, tokens=tokens) / there)

    def per_sm(self, in_flight: float = 0.0) -> int:
        """Thread blocks with so many bytes in flight that one SM holds."""
        return max(1, int(self.sm_in_flight_bytes.value / (in_flight or self.in_flight_bytes.value)))

    def drag(self, ctas: int, *, in_flight: float = 0.0, cluster: int = 1, piece: float = 0.0) -> float:
        """What the bytes that `ctas` thread blocks keep in flight add to a kernel beside them, as a share of its time.

        A pair on one TPC that moves less than twice one has as many fewer of them in flight.
        """
        each = in_flight or self.in_flight_bytes.value
        one = self.one_bytes_per_s(each)
        flying = ctas * each * self._paired(one, cluster, piece)
        return self.drag_per_byte.value * min(flying, self.drag_most_bytes.value)

    def _paired(self, one: float, cluster: int, piece: float) -> float:
        """Share of its own rate `one` that a thread block keeps beside another one on its TPC."""
        return min(1.0, self.pairs.rate(piece) / 2 / one) if cluster > 1 and self.pairs is not None else 1.0

    def scaled(self, by: float) -> Uva:
        """The ceiling of a link that is `by` times as fast; round trips and translations stay."""
        return attrs.evolve(self, ceiling_bytes_per_s=scaled(self.ceiling_bytes_per_s, by))


@attrs.frozen(kw_only=True)
class CopyEngine:
    """Copies that the host lists: a fixed cost per call, one per piece. Holds no SMs; one call at a time each way.

    start_s   host time of a list's submission before its first piece; None: a launch by the host, `launch.eager_s`
    submit_s  host time for each piece; the pieces of one call move when it returns. None: no matter
    beside_s  that each piece takes longer beside matrix products and attention. None: no matter
    """

    call_s: Quantity = number("s", 1e-7, 1e-3)
    whole_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)
    pieces: PieceCurve
    start_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "s", "plausible": (1e-9, 1e-2), "zero": True}
    )
    submit_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "s", "plausible": (1e-9, 1e-3), "zero": True}
    )
    beside_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "s", "plausible": (1e-9, 1e-3), "zero": True}
    )

    def bytes_per_s(self, piece_bytes: float, link_bytes_per_s: float) -> float:
        """Rate of many pieces of this size in one call over a link of this speed."""
        extra_s = self.pieces.piece_s(piece_bytes, self.whole_bytes_per_s.value)
        return piece_bytes / (extra_s + piece_bytes / link_bytes_per_s)

    def crowded(self, piece_bytes: float, link_bytes_per_s: float) -> float:
        """How much longer such pieces take beside products and attention, at least 1."""
        if self.beside_s is None:
            return 1.0
        return 1.0 + self.beside_s.value * self.bytes_per_s(piece_bytes, link_bytes_per_s) / piece_bytes


@attrs.frozen(kw_only=True)
class CpuGather:
    """Host threads gather into one pinned buffer, then one copy (InfiniGen's way).

    call_s              host time of a gather of nothing
    gather_bytes_per_s  of all the host's threads
    scatter_s           of `call_s`, what the host does after it has issued the copy; None: no matter
    """

    call_s: Quantity = number("s", 1e-7, 1e-2)
    gather_bytes_per_s: Quantity = number("B/s", 1e8, 1e12)
    scatter_s: Quantity | None = attrs.field(
        default=None, metadata={"unit": "s", "plausible": (1e-9, 1e-2), "zero": True}
    )


@attrs.frozen(kw_only=True)
class Calibration:
    """Where a profile that `sparda calibrate` wrote comes from.

    version  of the samples' file
    samples  twelve hex digits of what was measured (`name.samples.json` beside the profile)
    """

    version: int
    gpu: str
    driver: str
    cuda: str
    torch: str
    triton: str
    date: str
    commit: str
    command: str
    samples: str


def bent(rate: float, ceiling: float, p: float) -> float:
    """A rate under a ceiling that is approached softly, the more sharply the larger p >= 1."""
    low, high = min(rate, ceiling), max(rate, ceiling)
    return float(low / (1 + (low / high) ** p) ** (1 / p))


def scaled(quantity: Quantity, by: float) -> Quantity:
    """A quantity times `by`, as another link would have it."""
    return quantity.with_value(quantity.value * by, "another link was asked for")
