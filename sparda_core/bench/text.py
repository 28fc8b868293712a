"""The text that is read: a document of Python's own help, or a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from sparda_core.distill.texts import held_out_documents, read_documents
from sparda_core.errors import ConfigError
from sparda_core.evaluate.tasks import Encoder

#: Read by the demo: reference prose with far references, held out from the training of the shipped Forecast.
DEMO_DOCUMENT = "help:types"


@attrs.frozen(kw_only=True)
class Reading:
    """A document as tokens, and other text for the tasks to hide things in.

    name     where it comes from
    sha256   of the document's text, whole
    opening  its first words, for people
    tokens   ids that are read
    total    tokens of the whole document
    filler   ids of other text
    """

    name: str
    sha256: str
    opening: str
    tokens: tuple[int, ...]
    total: int
    filler: tuple[int, ...]


def read(
    encoder: Encoder, *, path: Path | None, limit: int | None, context: int, least: int, filler_tokens: int
) -> Reading:
    """Encode the demo's document, or the file at `path`.

    limit          most tokens read; None: all
    context        tokens the model can take; a longer text without a limit is refused
    least          fewest tokens that will do
    filler_tokens  filler wanted, from documents held out like the demo's; at most some 200,000
    raises         ConfigError for a text that is unreadable, empty, too long or too short
    """
    held_out = held_out_documents()
    if path is None:
        document = next(d for d in held_out if d.name == DEMO_DOCUMENT)
    else:
        (document,) = read_documents([path])
    ids = encoder.encode(document.text)
    if limit is None and len(ids) > context:
        raise ConfigError(
            f"text={document.name!r} has {len(ids)} tokens, the model's context is {context}: cut it with --max-tokens"
        )
    if limit is not None and limit > context:
        raise ConfigError(f"max_tokens={limit} must be <= {context}, the model's context")
    taken = min(len(ids), limit or len(ids))
    if taken < least:
        raise ConfigError(
            f"text={document.name!r} gives {taken} tokens, but the measurements need {least}: "
            "use a longer text, or ask for less"
        )
    others = sorted((d for d in held_out if d.name != document.name), key=lambda d: not d.name.startswith("help:"))
    filler: list[int] = []
    for other in others:  # prose first
        filler += _opening_ids(encoder, other.text, filler_tokens - len(filler))
    return Reading(
        name=document.name, sha256=hashlib.sha256(document.text.encode()).hexdigest(),
        opening=" ".join(document.text.split()[:24]), tokens=tuple(ids[:limit]), total=len(ids),
        filler=tuple(filler[:filler_tokens]),
    )  # fmt: skip


def _opening_ids(encoder: Encoder, text: str, tokens: int) -> list[int]:
    """The first `tokens` ids of a text; encodes no more of it than that may take."""
    return encoder.encode(text[: 12 * tokens])[:tokens] if tokens > 0 else []
