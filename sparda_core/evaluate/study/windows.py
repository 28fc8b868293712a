"""Windows of whole documents: fixed places, so that a figure on the same texts means the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import attrs

from sparda_core.distill.texts import Document
from sparda_core.errors import ConfigError


@attrs.frozen(kw_only=True)
class Window:
    """A stretch of one document.

    name      document and number, such as "emma.1"
    document  what it is drawn with again in a bootstrap
    offset    tokens of the document before it
    ids       its tokens
    """

    name: str
    document: str
    offset: int
    ids: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """Of its tokens."""
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()


def cut_windows(
    documents: Sequence[Document], encode: Callable[[str], list[int]], *, tokens: int, count: int, most: int = 3,
    least: int | None = None,
) -> tuple[Window, ...]:  # fmt: skip
    """The first window of every document, then the second of every one that has it, until there are `count`.

    most    windows of one document; they lie evenly spread over it and do not overlap
    least   fewer than `count` will do where the documents hold no more, but not fewer than this; None: `count`
    raises  ConfigError where the documents are too short
    """
    cuts: dict[str, list[Window]] = {}
    found: list[Window] = []
    for turn in range(most):
        for document in documents:
            if len(found) == count:
                return tuple(found)
            if document.name not in cuts:  # a long text takes seconds to encode, so only those that are needed are
                cuts[document.name] = _cut(document, encode(document.text), tokens, most)
            found += cuts[document.name][turn : turn + 1]
    if len(found) < (count if least is None else least):
        raise ConfigError(
            f"the texts hold {len(found)} windows of {tokens} tokens (at most {most} a document), {least or count} are "
            "asked for: add texts, or ask for fewer or shorter windows"
        )
    return tuple(found)


def _cut(document: Document, ids: list[int], tokens: int, most: int) -> list[Window]:
    fits = min(most, len(ids) // tokens)
    gap = (len(ids) - fits * tokens) // fits if fits else 0
    offsets = [at * (tokens + gap) for at in range(fits)]
    return [
        Window(name=f"{document.name}.{at}", document=document.name, offset=o, ids=tuple(ids[o : o + tokens]))
        for at, o in enumerate(offsets)
    ]
