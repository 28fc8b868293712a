"""The exact tokenizer of a checkpoint, from a GGUF's tables or a directory's tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import parse_json, read_document

_CONTROL = 3  # GGUF's token type for special tokens
#: Most bytes of a tokenizer.json; those of a quarter of a million tokens have 35 million.
_MOST_BYTES = 512 << 20


class Tokenizer:
    """Text to ids and back. Only `prompt` adds tokens that are not in the text."""

    def __init__(self, inner: tokenizers.Tokenizer, *, begin: int | None = None) -> None:
        """begin: the id that every prompt starts with, where the tokenizer's own rules do not say so already."""
        self._inner, self._begin = inner, begin

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

    def prompt(self, text: str) -> list[int]:
        """Ids of a text that a model is to continue: `encode`, and whatever the checkpoint puts around every text.

        That is the begin token of Llama and MiniCPM; Qwen and SmolLM2 have none.
        """
        self.encode(text)  # refuses what is no text
        ids = list(self._inner.encode(text, add_special_tokens=True).ids)
        return ids if self._begin is None or ids[:1] == [self._begin] else [self._begin, *ids]

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
    pieces, kinds, lines = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    for name, table, kind in (("tokens", pieces, str), ("merges", lines, str), ("token_type", kinds, int)):
        if not isinstance(table, list) or not all(isinstance(item, kind) for item in table):
            raise WeightsError(f"{source}: tokenizer.ggml.{name} is no list of {kind.__name__}; restore the file")
    try:
        return Tokenizer(_byte_pairs(pieces, kinds, lines))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exceptions
        raise WeightsError(f"{source}: tokenizer tables are damaged ({error}); restore the file") from error


def _byte_pairs(pieces: Sequence[str], kinds: Sequence[int], lines: Sequence[str]) -> tokenizers.Tokenizer:
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    inner = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    special = [p for p, kind in zip(pieces, kinds, strict=True) if kind == _CONTROL]
    inner.add_special_tokens([tokenizers.AddedToken(p, special=True, normalized=False) for p in special])
    return inner


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json, and from a tokenizer_config.json beside it whether texts begin with a token of their own.

    raises  WeightsError if one of them cannot be read, or they contradict each other
    """
    settings = path.parent / "tokenizer_config.json"
    begin = _begin_token(settings) if settings.exists() else None
    return tokenizer_from_text(_text_of(path), source=str(path), begin=begin)


def _text_of(path: Path) -> str:
    try:
        return read_document(path, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise WeightsError(f"tokenizer={str(path)!r} cannot be read ({error}); restore the file") from error


def _begin_token(path: Path) -> str | None:
    """The begin token, where `add_bos_token` says that every text has it; it is a text, or an object with `content`."""
    try:
        settings = parse_json(_text_of(path))
    except ValueError as error:
        raise WeightsError(f"tokenizer={str(path)!r} is malformed ({error}); restore the file") from error
    if not isinstance(settings, dict):
        raise WeightsError(
            f"tokenizer={str(path)!r} holds {type(settings).__name__}, must be an object; restore the file"
        )
    if settings.get("add_bos_token") is not True:
        return None
    token = settings.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise WeightsError(f"tokenizer={str(path)!r}: add_bos_token is true, bos_token={token!r} is no text")
    return token


def _id_of(inner: tokenizers.Tokenizer, token: str) -> int | None:
    try:
        return inner.token_to_id(token)
    except UnicodeEncodeError:  # half of a character
        return None


def tokenizer_from_text(text: str, *, source: str, begin: str | None = None) -> Tokenizer:
    """Build from the content of a tokenizer.json; raises WeightsError if it is malformed or knows no token `begin`."""
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # as above
        raise WeightsError(f"tokenizer={source!r} is malformed ({error}); restore the file") from error
    known = None if begin is None else _id_of(inner, begin)
    if begin is not None and known is None:
        raise WeightsError(f"tokenizer={source!r} has no token {begin!r}, with which texts begin; restore the file")
    return Tokenizer(inner, begin=known)
