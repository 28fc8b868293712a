"""A model as the rest of the package takes it: decoder, tokenizer and where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.shapes import ModelShape

if TYPE_CHECKING:
    from sparda_core.models.tokenizer import Tokenizer


@attrs.frozen(kw_only=True, eq=False)
class Model:
    """A decoder and its tokenizer; `tokenizer` is None for random models."""

    name: str
    decoder: Decoder
    tokenizer: Tokenizer | None = None

    @property
    def config(self) -> DecoderConfig:
        """Shape and constants."""
        return self.decoder.config

    @property
    def shape(self) -> ModelShape:
        """Sizes."""
        return self.decoder.shape
