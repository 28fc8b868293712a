"""Texts that every machine with Python has, split by whole documents into training and held-out.

Documents are the standard library's sources and the topics of Python's own help. What is held out
is a fixed list, so that a figure on held-out text means the same everywhere.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import attrs
import torch

from sparda_core.errors import ConfigError
from sparda_core.files import read_whole

HELD_OUT_MODULES = ("typing", "argparse", "_pydecimal", "tarfile", "inspect", "doctest")
HELD_OUT_TOPICS = ("types", "typesseq", "formatstrings", "compound")
_SKIPPED = {"test", "tests", "site-packages", "dist-packages", "__pycache__", "encodings", "_bundled", "idle_test"}
_SHARED_CHARS = 200  # a paragraph this long that two topics share counts as the same text


@attrs.frozen
class Document:
    """A whole text and the name it is known by."""

    name: str
    text: str


def held_out_documents() -> list[Document]:
    """Documents no shipped Forecast has been trained on, longest-lived names first."""
    modules = [Document(f"{name}.py", _read(_library() / f"{name}.py")) for name in HELD_OUT_MODULES]
    return modules + [Document(f"help:{name}", topics[name]) for name in HELD_OUT_TOPICS if name in topics]


def training_documents() -> list[Document]:
    """Everything else, in the order of names.

    Topics of the help repeat parts of one another: one that shares a long paragraph with a held-out
    topic is left out of both sets.
    """
    root = _library()
    held = {root / f"{name}.py" for name in HELD_OUT_MODULES}
    files = sorted(
        path
        for path in root.rglob("*.py")
        if path not in held
        and not _SKIPPED.intersection(path.relative_to(root).parts)
        and path.parent.name != "pydoc_data"
        and not path.parent.name.startswith("config-")
    )
    modules = [Document(path.relative_to(root).as_posix(), _read(path)) for path in files]
    known = {p for name in HELD_OUT_TOPICS for p in _paragraphs(topics.get(name, ""))}
    helps = [
        Document(f"help:{name}", text)
        for name, text in sorted(topics.items())
        if name not in HELD_OUT_TOPICS and not known.intersection(_paragraphs(text))
    ]
    return [document for document in modules + helps if document.text.strip()]


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """The caller's own texts; raises ConfigError for one that is unreadable or empty."""
    documents = []
    for path in paths:
        try:
            text = read_whole(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"text={str(path)!r} cannot be read as UTF-8 ({error}); name a text file") from error
        if not text.strip():
            raise ConfigError(f"text={str(path)!r} is empty; name a file with text")
        documents.append(Document(path.name, text))
    return documents


def content_hash(documents: Iterable[Document]) -> str:
    """sha256 over names and texts, in the order of names."""
    digest = hashlib.sha256()
    for document in sorted(documents, key=lambda d: d.name):
        for part in (document.name, document.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def token_stream(
    documents: Sequence[Document], encode: Callable[[str], list[int]], *, tokens: int, seed: int
) -> tuple[torch.Tensor, list[Document]]:
    """Encode whole documents in a seeded order until there are `tokens` tokens or none is left.

    returns  ids int64 [N] and the documents they came from; N may be below or above `tokens`
    """
    order = list(documents)
    random.Random(seed).shuffle(order)  # noqa: S311  repeatable, not secret
    ids: list[int] = []
    used = []
    for document in order:
        if len(ids) >= tokens:
            break
        ids += encode(document.text)
        used.append(document)
    return torch.tensor(ids, dtype=torch.int64), used


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _paragraphs(text: str) -> set[str]:
    return {p for part in text.split("\n\n") if len(p := " ".join(part.split())) >= _SHARED_CHARS}
