"""What a decoder needs to know beyond its shape."""

from __future__ import annotations

import math
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import ModelShape


def _positive(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigError(f"{attribute.name}={value!r} must be a finite number > 0")


@attrs.frozen(kw_only=True)
class DecoderConfig:
    """Shape and constants of a Llama-type decoder.

    rope_theta      base of the rotary frequencies
    norm_eps        added to the mean square in every RMSNorm
    bos_id, eos_id, pad_id    token ids; None where the model has none
    embed_scale, residual_scale, logit_scale    multipliers of the embedding, of each residual branch
        and of the logits (muP models such as MiniCPM); 1 for a plain Llama
    """

    shape: ModelShape
    rope_theta: float = attrs.field(default=10000.0, validator=_positive)
    norm_eps: float = attrs.field(default=1e-5, validator=_positive)
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    embed_scale: float = attrs.field(default=1.0, validator=_positive)
    residual_scale: float = attrs.field(default=1.0, validator=_positive)
    logit_scale: float = attrs.field(default=1.0, validator=_positive)

    def __attrs_post_init__(self) -> None:
        for name in ("bos_id", "eos_id", "pad_id"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 0 <= value < self.shape.vocab):
                raise ConfigError(f"{name}={value!r} must be an integer in [0, vocab={self.shape.vocab})")
