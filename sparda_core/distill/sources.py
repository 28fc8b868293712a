"""Where training text comes from: files and folders, Hugging Face datasets on disk, Mosaic MDS folders.

A source gives document number i, as text or as ids that somebody tokenised. Nothing is read before it is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from sparda_core.distill.texts import Document, content_hash, read_documents
from sparda_core.errors import ConfigError
from sparda_core.files import parse_json, read_document

TEXT_COLUMNS = ("text", "content")
ID_COLUMNS = ("input_ids", "tokens")


@attrs.frozen(eq=False)
class Ids:
    """A document that came as token ids, int [N]."""

    name: str
    ids: np.ndarray


Item = Document | Ids


class Source(Protocol):
    """Samples by number; a sample holds one document or several."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Iterator[Item]:
        """The documents of sample `index`."""

    def fingerprint(self) -> str:
        """Short text that changes with the content; cheap even where the content is large."""


class Documents:
    """Documents that are already in memory."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def read(self, index: int) -> Iterator[Item]:
        """One document a sample."""
        yield self._documents[index]

    def fingerprint(self) -> str:
        """sha256 of names and texts."""
        return content_hash(self._documents)


class TextFiles:
    """UTF-8 files, and all files of folders that match a pattern, in the order of names; hidden ones left out."""

    def __init__(self, paths: Sequence[Path], pattern: str = "**/*") -> None:
        """Raises ConfigError for a path that is not there, and for a folder in which nothing matches."""
        self._files: list[tuple[str, Path]] = []
        for path in paths:
            if not path.is_dir():
                if path.exists() and not path.is_file():  # it is read more than once, and a pipe gives nothing twice
                    raise ConfigError(f"text={str(path)!r} is not an ordinary file; write it into one, and name that")
                self._files.append((path.name, path))
                continue
            found = sorted(
                file for file in _matching(path, pattern)
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )  # fmt: skip
            if not found:
                raise ConfigError(f"text={str(path)!r} holds no file that matches {pattern!r}; name another folder")
            self._files += [(file.relative_to(path).as_posix(), file) for file in found]
        read_documents([file for _, file in self._files if not file.exists()])

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Iterator[Item]:
        """One file a sample; raises ConfigError where it is no text or an empty one."""
        name, path = self._files[index]
        yield Document(name, read_documents([path])[0].text)

    def fingerprint(self) -> str:
        """sha256 of names and bytes."""
        digest = hashlib.sha256()
        for name, path in self._files:
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
        return digest.hexdigest()


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"pattern={pattern!r} is none ({error}); write it relative to the folder, as in '**/*.txt'"
        ) from error


class HuggingFace:
    """A dataset that `save_to_disk` wrote, read by `datasets.load_from_disk`."""

    def __init__(self, path: Path, *, column: str | None = None, split: str = "train") -> None:
        """Take `column`, or the first of text, content, input_ids and tokens.

        raises  ConfigError where `datasets` is not installed, or the folder holds no such dataset
        """
        try:
            import datasets
        except ImportError as error:
            raise ConfigError(f"dataset={str(path)!r} needs the extra: pip install 'sparda[datasets]'") from error
        try:
            found = datasets.load_from_disk(str(path))
        except Exception as error:  # the library meets a damaged folder with whatever comes up
            raise ConfigError(f"dataset={str(path)!r} cannot be read ({error}): not of save_to_disk") from error
        if isinstance(found, datasets.DatasetDict):
            if split not in found:
                raise ConfigError(f"dataset={str(path)!r} has no split {split!r}; it has {', '.join(found)}")
            found = found[split]
        self._name, self._rows = path.name, found
        self._column = pick_column(list(found.column_names), column, where=f"dataset={str(path)!r}")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Iterator[Item]:
        """One row a sample."""
        yield from _items(f"{self._name}/{index}", self._rows[index], self._column)

    def fingerprint(self) -> str:
        """The library's own."""
        return f"{self._rows._fingerprint}:{self._column}"  # noqa: SLF001  there is no other name for it


class Mosaic:
    """A folder of MDS shards, read by the mosaicml-streaming library.

    Where a sample has `indices` ([start, end) of its documents, as in ProLong), each of them is a document.
    """

    def __init__(self, path: Path, *, column: str | None = None) -> None:
        """Raises ConfigError where the library is not installed, or the folder holds no shards."""
        try:
            from streaming import LocalDataset
        except ImportError as error:
            raise ConfigError(
                f"mds={str(path)!r} needs the extra: pip install 'sparda[mds]', in an environment whose transformers "
                "may be older than 5"
            ) from error
        self._index = path / "index.json"
        try:
            self._rows: Any = LocalDataset(local=str(path))
            shards = parse_json(read_document(self._index))["shards"]
            names = shards[0]["column_names"] if shards else []
        except Exception as error:  # as above
            raise ConfigError(f"mds={str(path)!r} cannot be read ({error}); name a folder with index.json") from error
        self._name = path.name
        self._column = pick_column(names, column, where=f"mds={str(path)!r}")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Iterator[Item]:
        """One sample, cut into its documents."""
        yield from _items(f"{self._name}/{index}", self._rows[index], self._column)

    def fingerprint(self) -> str:
        """sha256 of the index, which names every shard's size and, where it was asked for, hash."""
        return f"{hashlib.sha256(self._index.read_bytes()).hexdigest()}:{self._column}"


def pick_column(names: Sequence[str], wanted: str | None, *, where: str) -> str:
    """The column to train on; raises ConfigError listing what there is."""
    known = (wanted,) if wanted is not None else (*TEXT_COLUMNS, *ID_COLUMNS)
    for name in known:
        if name in names:
            return name
    raise ConfigError(f"{where} has no column {' or '.join(known)}; it has {', '.join(names) or 'none'}")


def _items(name: str, row: Any, column: str) -> Iterator[Item]:
    """A row as documents: a text, or ids with the bounds of documents where the row has them."""
    value = row[column]
    if isinstance(value, str):
        yield Document(name, value)
        return
    ids = np.asarray(value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigError(f"{name}: column {column!r} must be a text or a list of integers, is {ids.dtype}{ids.shape}")
    bounds = None
    with contextlib.suppress(KeyError):
        bounds = np.asarray(row["indices"])
    if bounds is None or not bounds.size:
        yield Ids(name, ids)
        return
    for number, (start, stop) in enumerate(bounds.reshape(-1, 2).tolist()):
        if not 0 <= start <= stop <= len(ids):
            raise ConfigError(f"{name}: indices {start}, {stop} must lie in [0, {len(ids)}]")
        if stop > start:
            yield Ids(f"{name}#{number}", ids[start:stop])
