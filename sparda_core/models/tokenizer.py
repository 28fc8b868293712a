"""The exact tokenizer of a checkpoint, from a GGUF's tables or a directory's tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sparda_core.errors import ConfigError, WeightsError

_CONTROL = 3  # GGUF's token type for special tokens


class Tokenizer:
    """Text to ids and back. Adds no begin or end token of its own."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner

    @property
    def vocab(self) -> int:
        """Number of known ids, special ones included."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; special tokens written out in the text are recognised.

        raises  ConfigError for what is no text: bytes that were no UTF-8 when they came from outside
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the text is not UTF-8 (character {error.start} stands for a stray byte)") from error
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Give back the text of `ids`, special tokens spelled out; undoes `encode` exactly."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))

    def to_json(self) -> str:
        """The content of an equivalent tokenizer.json."""
        return str(self._inner.to_str())


def tokenizer_from_gguf(fields: Mapping[str, Any], *, source: str) -> Tokenizer:
    """Build the byte-level BPE tokenizer that a GGUF describes.

    fields  the file's key-value section
    raises  WeightsError if the tables are absent or the text is split by a rule not known here

    The splitting rule matters as much as the merges: "smollm" separates every digit before the
    GPT-2 pattern applies, and ids differ wherever a number follows white space if that is left out.
    """
    absent = [k for k in ("tokens", "token_type", "merges", "pre") if f"tokenizer.ggml.{k}" not in fields]
    if absent:
        raise WeightsError(f"{source}: tokenizer tables {absent} are missing; use a GGUF that carries its tokenizer")
    split = fields["tokenizer.ggml.pre"]
    if split != "smollm":
        raise WeightsError(
            f"{source}: tokenizer.ggml.pre={split!r} is not supported, must be 'smollm'; "
            "load a directory with a tokenizer.json instead"
        )
    pieces: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ", 1)) for line in fields["tokenizer.ggml.merges"]]
    inner = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    special = [p for p, kind in zip(pieces, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
    inner.add_special_tokens([tokenizers.AddedToken(p, special=True, normalized=False) for p in special])
    return Tokenizer(inner)


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json; raises WeightsError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise WeightsError(f"tokenizer={str(path)!r} cannot be read ({error}); restore the file") from error
    return tokenizer_from_text(text, source=str(path))


def tokenizer_from_text(text: str, *, source: str) -> Tokenizer:
    """Build from the content of a tokenizer.json; raises WeightsError if it is malformed."""
    try:
        return Tokenizer(tokenizers.Tokenizer.from_str(text))
    except Exception as error:  # the library raises nothing narrower
        raise WeightsError(f"tokenizer={source!r} is malformed ({error}); restore the file") from error
