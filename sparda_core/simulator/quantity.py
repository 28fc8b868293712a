"""Numbers of a hardware profile: each carries its unit, its source, and what it rests on."""

from __future__ import annotations

import bisect
import enum
import itertools
import math
from collections.abc import Sequence

import attrs

from sparda_core.errors import ProfileError


class Basis(enum.StrEnum):
    """What a number rests on."""

    MEASURED = "measured"
    DATASHEET = "datasheet"
    DERIVED = "derived"  # from a data sheet, or from this machine's other numbers, as a measured one has them
    PRIOR = "prior"  # carried over from a similar machine, or assumed; never measured on this one


def _text(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(f"{attribute.name}={value!r} must be a text that is not empty")


def _basis(value: str) -> Basis:
    try:
        return Basis(value)
    except ValueError as wrong:
        raise ProfileError(f"basis={value!r} is unknown; known: {', '.join(Basis)}") from wrong


def _float(value: float) -> float:
    # A text that reads as a number, or a truth value, is a slip of whoever wrote the file.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProfileError(f"{value!r} must be a number")
    return float(value)


@attrs.frozen(kw_only=True)
class Quantity:
    """One number."""

    value: float = attrs.field(converter=_float)
    unit: str = attrs.field(validator=_text)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)

    @value.validator
    def _positive(self, attribute: attrs.Attribute[float], value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise ProfileError(f"value={value} must be finite and >= 0")

    def with_value(self, value: float, why: str) -> Quantity:
        """The same quantity, set by hand: a prior from then on."""
        return attrs.evolve(self, value=value, source=f"set to {value:g}: {why}", basis=Basis.PRIOR)


def _rising(instance: object, attribute: attrs.Attribute[tuple[float, ...]], value: tuple[float, ...]) -> None:
    if not value or any(b <= a for a, b in itertools.pairwise(value)):
        raise ProfileError(f"{attribute.name}={list(value)} must be ascending and not empty")


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(_float, values))


def _rows(values: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(_floats, values))


def _interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear between the points, constant beyond them."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    at = bisect.bisect_right(xs, x)
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


@attrs.frozen(kw_only=True)
class BendCurve:
    """How sharply a ceiling is met, by tokens of the compute beside: p of x / (1 + (x / ceiling)^p)^(1/p).

    bend   for each of `tokens`, >= 1; large: the smaller of x and the ceiling
    share  for each of `tokens`, > 0, <= 1: of the rate of one thread block far below the ceiling; none: all of it
    Linear in log2(tokens); tokens outside the table take its nearest entry.
    """

    tokens: tuple[float, ...] = attrs.field(converter=_floats, validator=_rising)
    bend: tuple[float, ...] = attrs.field(converter=_floats)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)
    share: tuple[float, ...] = attrs.field(default=(), converter=_floats)

    @bend.validator
    def _fits(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.tokens) or any(not (math.isfinite(x) and x >= 1) for x in value):
            raise ProfileError(f"bend={list(value)} must hold one finite number >= 1 for each of tokens")
        if self.tokens[0] < 1:
            raise ProfileError(f"tokens={list(self.tokens)} must be >= 1")

    @share.validator
    def _shares(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if value and (len(value) != len(self.tokens) or any(not 0 < x <= 1 for x in value)):
            raise ProfileError(f"share={list(value)} must hold one number > 0 and <= 1 for each of tokens, or none")

    def share_at(self, tokens: float) -> float:
        """Share beside compute of `tokens` tokens."""
        if not self.share:
            return 1.0
        return _interpolate([math.log2(t) for t in self.tokens], self.share, math.log2(max(tokens, 1)))

    def at(self, tokens: float) -> float:
        """Bend beside compute of `tokens` tokens."""
        return _interpolate([math.log2(t) for t in self.tokens], self.bend, math.log2(max(tokens, 1)))


@attrs.frozen(kw_only=True)
class WaveShare:
    """What a second, nearly empty wave of a matrix product costs, by tokens.

    share   for each of `tokens`, as a share of the product's time in one wave; 0 means nothing
    took_s  for each of `tokens`, seconds of the products that it was measured on: a wave more takes any product the
            same time, which is another share of another product's; none: the same share of any
    Linear in log2(tokens); tokens outside the table take its nearest entry.
    """

    tokens: tuple[float, ...] = attrs.field(converter=_floats, validator=_rising)
    share: tuple[float, ...] = attrs.field(converter=_floats)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)
    took_s: tuple[float, ...] = attrs.field(default=(), converter=_floats)

    @share.validator
    def _fits(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.tokens) or any(not (math.isfinite(x) and x >= 0) for x in value):
            raise ProfileError(f"share={list(value)} must hold one finite share >= 0 for each of tokens")
        if self.tokens[0] < 1:
            raise ProfileError(f"tokens={list(self.tokens)} must be >= 1")

    @took_s.validator
    def _took(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if value and (len(value) != len(self.tokens) or any(not (math.isfinite(x) and x > 0) for x in value)):
            raise ProfileError(f"took_s={list(value)} must hold one finite number > 0 for each of tokens, or none")

    def at(self, tokens: float) -> float:
        """Share at `tokens` tokens."""
        return _interpolate([math.log2(t) for t in self.tokens], self.share, math.log2(max(tokens, 1)))

    def of(self, product_s: float, tokens: float) -> float:
        """Share of a product of `tokens` tokens that takes so long in one wave."""
        if not (self.took_s and product_s):
            return self.at(tokens)
        waves_s = [share * took_s for share, took_s in zip(self.share, self.took_s, strict=True)]
        return _interpolate([math.log2(t) for t in self.tokens], waves_s, math.log2(max(tokens, 1))) / product_s


@attrs.frozen(kw_only=True)
class RowsCurve:
    """Seconds by tokens: what an operation takes beyond the bytes, the FLOPs and the launches that its work states.

    s  for each of `tokens`, >= 0
    Linear in log2(1 + tokens); tokens outside the table take its nearest entry.
    """

    tokens: tuple[float, ...] = attrs.field(converter=_floats, validator=_rising)
    s: tuple[float, ...] = attrs.field(converter=_floats)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)

    @s.validator
    def _fits(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.tokens) or any(not (math.isfinite(x) and x >= 0) for x in value):
            raise ProfileError(f"s={list(value)} must hold one finite number >= 0 for each of tokens")
        if self.tokens[0] < 0:
            raise ProfileError(f"tokens={list(self.tokens)} must be >= 0")

    def at(self, tokens: float) -> float:
        """Seconds at `tokens` tokens."""
        return _interpolate([math.log2(1 + t) for t in self.tokens], self.s, math.log2(1 + max(tokens, 0)))


@attrs.frozen(kw_only=True)
class CrowdCurve:
    """How fast a copy is beside attention, by how many thread blocks of attention an SM holds.

    bytes_per_s  for each of `blocks`, > 0: b of q / (t0 + q / b), the rate of a thread block of the copy
    bend         for each of `blocks`, >= 1: how sharply the ceiling is met, p of x / (1 + (x / ceiling)^p)^(1/p)
    Linear in the time of a byte, and in 1 / p; blocks outside the table take its nearest entry.
    """

    blocks: tuple[float, ...] = attrs.field(converter=_floats, validator=_rising)
    bytes_per_s: tuple[float, ...] = attrs.field(converter=_floats)
    bend: tuple[float, ...] = attrs.field(converter=_floats)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)

    @bytes_per_s.validator
    def _rates(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.blocks) or any(not (math.isfinite(x) and x > 0) for x in value):
            raise ProfileError(f"bytes_per_s={list(value)} must hold one finite rate > 0 for each of blocks")
        if self.blocks[0] < 1:
            raise ProfileError(f"blocks={list(self.blocks)} must be >= 1")

    @bend.validator
    def _bends(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.blocks) or any(not (math.isfinite(x) and x >= 1) for x in value):
            raise ProfileError(f"bend={list(value)} must hold one finite number >= 1 for each of blocks")

    def at(self, blocks: float) -> tuple[float, float]:
        """(bytes a second, bend) beside so many thread blocks an SM."""
        byte_s = _interpolate(self.blocks, [1 / rate for rate in self.bytes_per_s], blocks)
        return 1 / byte_s, 1 / _interpolate(self.blocks, [1 / bend for bend in self.bend], blocks)


@attrs.frozen(kw_only=True)
class PieceCurve:
    """Rate of many equal pieces, by the size of a piece.

    Of a copy engine: of pieces moved by one call. `piece_s` turns it into a cost per piece on top of its
    bytes at full rate, which is what falls off between the points and stays constant beyond them.
    """

    piece_bytes: tuple[float, ...] = attrs.field(converter=_floats, validator=_rising)
    bytes_per_s: tuple[float, ...] = attrs.field(converter=_floats)
    source: str = attrs.field(validator=_text)
    basis: Basis = attrs.field(converter=_basis)

    @bytes_per_s.validator
    def _fits(self, attribute: attrs.Attribute[object], value: tuple[float, ...]) -> None:
        if len(value) != len(self.piece_bytes) or any(not (math.isfinite(x) and x > 0) for x in value):
            raise ProfileError(f"bytes_per_s={list(value)} must hold one rate > 0 for each of piece_bytes")

    def rate(self, piece_bytes: float) -> float:
        """Bytes a second at this size: linear in log2(size) between the points, constant beyond them."""
        sizes = [math.log2(b) for b in self.piece_bytes]
        return _interpolate(sizes, self.bytes_per_s, math.log2(max(piece_bytes, 1)))

    def piece_s(self, piece_bytes: float, whole_bytes_per_s: float) -> float:
        """Seconds that one piece costs beyond its bytes at `whole_bytes_per_s`, the rate of one large piece."""
        extra = [
            max(0.0, size / rate - size / whole_bytes_per_s)
            for size, rate in zip(self.piece_bytes, self.bytes_per_s, strict=True)
        ]
        return _interpolate([math.log2(b) for b in self.piece_bytes], extra, math.log2(max(piece_bytes, 1)))
