"""What a config.json says about rotary positions: `rope_parameters`, or `rope_scaling` with `rope_theta` beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

from sparda_core.errors import ConfigError, UnknownNameError, WeightsError
from sparda_core.models.families.settings import Settings, is_number
from sparda_core.models.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)

_KNOWN = frozenset({
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor",
    "mscale", "mscale_all_dim", "truncate",
})  # fmt: skip


def read_rope(settings: Settings) -> tuple[float, RopeScaling | None]:
    """Base of the frequencies, and how they are stretched; None: not at all.

    raises  WeightsError for a rule that is not known, a key that no rule has, or a value that is missing or wrong
    """
    rope = settings.section("rope_parameters") or settings.section("rope_scaling")
    theta = settings.number("rope_theta", 10000.0)
    settings.must_be("partial_rotary_factor", 1.0, why="every pair of a head is rotated")
    if rope is None:
        return theta, None
    theta = rope.number("rope_theta", theta)
    rope.must_be("partial_rotary_factor", 1.0, why="every pair of a head is rotated")
    strange = sorted(set(rope.raw) - _KNOWN)
    if strange:
        raise WeightsError(f"{rope.source}: {strange} are not known; must be among {', '.join(sorted(_KNOWN))}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        unknown = UnknownNameError(what="rope_type", name=str(kind), known=_KINDS)
        raise WeightsError(f"{rope.source}: {unknown}")
    try:
        return theta, _KINDS[kind](rope, settings)
    except WeightsError:
        raise
    except (ArithmeticError, ConfigError) as error:
        raise WeightsError(f"{rope.source}: {error}") from error


def _linear(rope: Settings, _settings: Settings) -> RopeScaling:
    return LinearScaling(factor=_need(rope, "factor"))


def _dynamic(rope: Settings, settings: Settings) -> RopeScaling:
    # of the model's own context, whatever `original_max_position_embeddings` says: so it is in Hugging Face's code
    return DynamicScaling(factor=_need(rope, "factor"), original=settings.integer("max_position_embeddings"))


def _llama3(rope: Settings, settings: Settings) -> RopeScaling:
    return Llama3Scaling(
        factor=_need(rope, "factor"), low=_need(rope, "low_freq_factor"), high=_need(rope, "high_freq_factor"),
        original=_original(rope, settings),
    )  # fmt: skip


def _yarn(rope: Settings, settings: Settings) -> RopeScaling:
    return YarnScaling(
        factor=_need(rope, "factor"), original=_original(rope, settings), fast=rope.number("beta_fast", 32.0),
        slow=rope.number("beta_slow", 1.0), attention=rope.number("attention_factor", None),
        mscale=rope.number("mscale", None) or None, mscale_all=rope.number("mscale_all_dim", None) or None,
        whole=rope.flag("truncate", True),
    )  # fmt: skip


def _longrope(rope: Settings, settings: Settings) -> RopeScaling:
    original, context = _original(rope, settings), settings.integer("max_position_embeddings")
    factor = rope.number("factor", context / original if original > 0 else 1.0)
    magnitude = rope.number("attention_factor", None)
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 or original < 2 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = read_factors(rope)
    return LongRopeScaling(short=short, long=long, original=original, attention=magnitude)


_KINDS: dict[str, Callable[[Settings, Settings], RopeScaling | None]] = {
    "default": lambda _rope, _settings: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def read_factors(rope: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """LongRoPE's two lists, short and long; raises WeightsError where one is missing or holds something else."""
    found = []
    for key in ("short_factor", "long_factor"):
        values = rope.get(key)
        if not isinstance(values, list) or not all(is_number(value) and value > 0 for value in values):
            raise rope.refusal(key, "a list of numbers > 0, one a pair of a head")
        found.append(tuple(float(value) for value in values))
    return found[0], found[1]


def _need(rope: Settings, key: str) -> float:
    value = rope.number(key, None)
    if value is None:
        kind = rope.get("rope_type", rope.get("type"))
        raise WeightsError(f"{rope.source}: rope_type={kind!r} lacks {key!r}; use a complete checkpoint")
    return float(value)


def _original(rope: Settings, settings: Settings) -> int:
    key = "original_max_position_embeddings"
    found = settings.integer(key, None) or rope.integer(key, None) or settings.integer("max_position_embeddings")
    return int(found)
