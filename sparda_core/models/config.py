"""What a decoder needs to know beyond its shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.models.rope_scaling import RopeScaling
from sparda_core.shapes import BlockSpec, ModelShape


def _positive(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigError(f"{attribute.name}={value!r} must be a finite number > 0")


def _as_ids(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(ids)


@attrs.frozen(kw_only=True)
class DecoderConfig:
    """Shape and constants of a Llama-type decoder.

    rope_theta      base of the rotary frequencies
    rope_scaling    how they are stretched; None: not at all
    norm_eps        added to the mean square in every RMSNorm
    bos_id, eos_id, pad_id    token ids; None where the model has none
    end_ids         every token that ends a text; left out, eos_id alone
    embed_scale, residual_scale, logit_scale    multipliers of the embedding, of each residual branch
        and of the logits (muP models such as MiniCPM); 1 for a plain Llama
    block_spec      the blocks and entries that the checkpoint was trained with; None where it says none
    select_blocks   of a NOSA model: blocks beside sink and local that go by the query; None where it says none
    """

    shape: ModelShape
    rope_theta: float = attrs.field(default=10000.0, validator=_positive)
    rope_scaling: RopeScaling | None = None
    norm_eps: float = attrs.field(default=1e-5, validator=_positive)
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    end_ids: tuple[int, ...] = attrs.field(converter=_as_ids)
    embed_scale: float = attrs.field(default=1.0, validator=_positive)
    residual_scale: float = attrs.field(default=1.0, validator=_positive)
    logit_scale: float = attrs.field(default=1.0, validator=_positive)
    block_spec: BlockSpec | None = None
    select_blocks: int | None = None

    @end_ids.default
    def _only_eos(self) -> tuple[int, ...]:
        return () if self.eos_id is None else (self.eos_id,)

    def __attrs_post_init__(self) -> None:
        for name in ("bos_id", "eos_id", "pad_id"):
            value = getattr(self, name)
            if value is not None:
                self._check_id(name, value)
        for value in self.end_ids:
            self._check_id("end_ids", value)
        if self.rope_scaling is not None:
            self.rope_scaling.check(self.shape.head_dim)

    def _check_id(self, name: str, value: object) -> None:
        if not (isinstance(value, int) and 0 <= value < self.shape.vocab):
            raise ConfigError(f"{name}={value!r} must be an integer in [0, vocab={self.shape.vocab})")
