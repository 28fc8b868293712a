"""Rotary frequencies: plain, and the known ways to stretch them past the context a model was trained on.

A rule says at which frequencies a token turns, given how long its text is when the token is read. Most rules do not
look at the length. Those that do (dynamic NTK, LongRoPE) say from where on: `settled`. A key that is already cached
stays as it was turned, as in Hugging Face's decoding.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from sparda_core.errors import ConfigError


def _number(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ConfigError(f"{attribute.name}={value!r} must be a finite number > 0")


def _factor(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    _number(instance, attribute, value)
    if value < 1:
        raise ConfigError(f"{attribute.name}={value!r} must be >= 1: rotary positions are stretched, never shrunk")


def _length(instance: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise ConfigError(f"{attribute.name}={value!r} must be an integer >= 2")


@attrs.frozen(kw_only=True)
class RopeScaling:
    """Plain rotary positions: pair i of D/2 turns by theta ** (-2i / D) a token."""

    @property
    def settled(self) -> int | None:
        """Texts of up to so many tokens have the same frequencies; None: texts of any length have."""
        return None

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    def stretched(self, context: int) -> int:
        """Tokens that a model takes whose files say `context`."""
        return context

    def check(self, head_dim: int) -> None:
        """Raise ConfigError where this does not fit heads of `head_dim` values."""

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """Radians a token, float64 [N, D/2] or [1, D/2] where the length does not matter.

        tokens_N  float64 [N], tokens of the text, the turned one included; not below `settled` where that is a number
        """
        return _plain(theta, head_dim)[None]


def _plain(theta: float, head_dim: int) -> torch.Tensor:
    return theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


@attrs.frozen(kw_only=True)
class LinearScaling(RopeScaling):
    """Positions divided by a factor (position interpolation, arXiv 2306.15595)."""

    factor: float = attrs.field(validator=_factor)

    def stretched(self, context: int) -> int:
        """See RopeScaling: what the files say, times the factor."""
        return int(context * self.factor)

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """See RopeScaling."""
        return _plain(theta, head_dim)[None] / self.factor


@attrs.frozen(kw_only=True)
class DynamicScaling(RopeScaling):
    """NTK-aware base that grows with the text once it is longer than `original` tokens."""

    factor: float = attrs.field(validator=_factor)
    original: int = attrs.field(validator=_length)

    @property
    def settled(self) -> int | None:
        """See RopeScaling."""
        return self.original

    def stretched(self, context: int) -> int:
        """See RopeScaling: what the files say, times the factor."""
        return int(context * self.factor)

    def check(self, head_dim: int) -> None:
        """See RopeScaling."""
        if head_dim < 4:
            raise ConfigError(f"head_dim={head_dim} must be >= 4 for rope_type 'dynamic'")

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """See RopeScaling."""
        growth_N = self.factor * tokens_N / self.original - (self.factor - 1)
        base_N = theta * growth_N ** (head_dim / (head_dim - 2))
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        return base_N[:, None] ** -pairs[None]


@attrs.frozen(kw_only=True)
class Llama3Scaling(RopeScaling):
    """Llama 3.1: slow frequencies divided by a factor, fast ones kept, those between blended by their wavelength."""

    factor: float = attrs.field(validator=_factor)
    low: float = attrs.field(validator=_number)
    high: float = attrs.field(validator=_number)
    original: int = attrs.field(validator=_length)

    def __attrs_post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"low_freq_factor={self.low} must be < high_freq_factor={self.high}")

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """See RopeScaling."""
        plain = _plain(theta, head_dim)
        turns = self.original * plain / (2 * math.pi)  # within the original context
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (kept * plain + (1 - kept) * plain / self.factor)[None]


@attrs.frozen(kw_only=True)
class YarnScaling(RopeScaling):
    """YaRN (arXiv 2309.00071): a ramp over pairs between kept and divided frequencies, and a magnitude.

    fast, slow  turns within the original context at which the ramp begins and ends
    whole       the ramp's ends are rounded to whole pairs
    attention   the magnitude; None: of the factor, and of `mscale` and `mscale_all` where both are given
    """

    factor: float = attrs.field(validator=_factor)
    original: int = attrs.field(validator=_length)
    fast: float = attrs.field(default=32.0, validator=_number)
    slow: float = attrs.field(default=1.0, validator=_number)
    attention: float | None = attrs.field(default=None, validator=attrs.validators.optional(_number))
    mscale: float | None = attrs.field(default=None, validator=attrs.validators.optional(_number))
    mscale_all: float | None = attrs.field(default=None, validator=attrs.validators.optional(_number))
    whole: bool = True

    @property
    def magnitude(self) -> float:
        """See RopeScaling."""
        if self.attention is not None:
            return self.attention
        grown = 0.1 * math.log(self.factor)
        if self.mscale is not None and self.mscale_all is not None:
            return (1 + self.mscale * grown) / (1 + self.mscale_all * grown)
        return 1 + grown

    def stretched(self, context: int) -> int:
        """See RopeScaling: the original context times the factor, or what the files say if that is more."""
        return max(context, int(self.original * self.factor))

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """See RopeScaling."""
        if theta == 1:
            raise ConfigError("rope_theta=1.0 has no wavelengths for YaRN to tell apart")
        first, last = (self._pair(turns, theta, head_dim) for turns in (self.fast, self.slow))
        if self.whole:
            first, last = float(math.floor(first)), float(math.ceil(last))
        first, last = max(first, 0.0), min(last, head_dim - 1.0)
        if first == last:
            last += 0.001
        plain = _plain(theta, head_dim)
        divided = ((torch.arange(head_dim // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
        return (divided * plain / self.factor + (1 - divided) * plain)[None]

    def _pair(self, turns: float, theta: float, head_dim: int) -> float:
        """Which pair, as a real number, turns so often within the original context."""
        return head_dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


@attrs.frozen(kw_only=True)
class LongRopeScaling(RopeScaling):
    """LongRoPE (arXiv 2402.13753): each pair divided by a factor of its own, one list for short texts, one for long.

    short, long  factors of the D/2 pairs
    original     texts of more tokens are long
    always_long  MiniCPM's rule: a model whose context is longer than `original` always uses the long list
    """

    short: tuple[float, ...] = attrs.field(validator=attrs.validators.deep_iterable(_number))
    long: tuple[float, ...] = attrs.field(validator=attrs.validators.deep_iterable(_number))
    original: int = attrs.field(validator=_length)
    attention: float = attrs.field(default=1.0, validator=_number)
    always_long: bool = False

    @property
    def settled(self) -> int | None:
        """See RopeScaling."""
        return None if self.always_long or self.short == self.long else self.original

    @property
    def magnitude(self) -> float:
        """See RopeScaling."""
        return self.attention

    def check(self, head_dim: int) -> None:
        """See RopeScaling."""
        for name, factors in (("short_factor", self.short), ("long_factor", self.long)):
            if len(factors) != head_dim // 2:
                raise ConfigError(f"{name} has {len(factors)} numbers, must have {head_dim // 2}: one a pair of a head")

    def frequencies(self, theta: float, head_dim: int, tokens_N: torch.Tensor) -> torch.Tensor:
        """See RopeScaling."""
        short, long = (torch.tensor(factors, dtype=torch.float64) for factors in (self.short, self.long))
        plain = _plain(theta, head_dim)
        if self.settled is None:
            return (plain / long)[None]
        return plain / torch.where(tokens_N[:, None] > self.original, long, short)
