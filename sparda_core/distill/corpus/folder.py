"""The folder of fetched texts: train/, tuning/ and held-out/, a file a document, and a manifest with their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.distill.corpus.sources import SPLITS, split_of
from sparda_core.errors import ConfigError, RecordingError, UnknownNameError
from sparda_core.files import make_folder, parse_json, read_document, write_whole

if TYPE_CHECKING:
    from sparda_core.distill.texts import Document

MANIFEST = "manifest.json"


def write_folder(
    folder: Path, packages: Mapping[str, Mapping[str, Any]], documents: Mapping[str, str]
) -> dict[str, Any]:
    """Write every document into its split, then the manifest; documents that no split may have are left out.

    packages  what each package was: version, digests
    returns   the manifest
    """
    for split in SPLITS:
        make_folder(folder / split)
    held: dict[str, dict[str, Any]] = {}
    for name, text in sorted(documents.items()):
        where = split_of(name)
        if where is None:
            continue
        path, data = f"{where}/{file_name(name)}", text.encode("utf-8", "replace")
        write_whole(folder / path, data)
        held[name] = {"split": where, "path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest = {"packages": dict(packages), "documents": held}
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def read_split(folder: Path, split: str) -> list[Document]:
    """Documents of one split, in order of names, each held to its digest.

    raises  UnknownNameError (split); ConfigError where the folder was not made by `sparda texts fetch`, or a
            document is missing or changed
    """
    from sparda_core.distill.texts import Document

    if split not in SPLITS:
        raise UnknownNameError(what="split", name=split, known=SPLITS)
    manifest = read_manifest(folder)
    found = []
    for name, known in sorted(manifest["documents"].items()):
        if known["split"] != split:
            continue
        path = folder / split / file_name(name)
        if not path.is_file():
            raise ConfigError(f"text={str(path)!r} is missing; run `sparda texts fetch --out {folder}` again")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != known["sha256"]:
            raise ConfigError(f"text={str(path)!r} was changed; run `sparda texts fetch --out {folder}` again")
        found.append(Document(name, data.decode("utf-8", "replace")))
    return found


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; raises ConfigError where there is none, RecordingError where it is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"texts={str(folder)!r} holds no {MANIFEST}; run `sparda texts fetch --out {folder}`")
    try:
        manifest = parse_json(read_document(path))
    except ValueError as wrong:
        raise RecordingError(f"{path} is damaged ({wrong}); fetch the texts again") from wrong
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(k), dict) for k in ("packages", "documents")):
        raise RecordingError(f"{path} is damaged (it names no packages or no documents); fetch the texts again")
    odd = [name for name, facts in manifest["packages"].items() if not _is_package(facts)]
    if odd:
        raise RecordingError(f"{path} is damaged (package {odd[0]!r} has no licence or file); fetch the texts again")
    wrong_ones = [name for name, known in manifest["documents"].items() if not _is_document(name, known)]
    if wrong_ones:
        raise RecordingError(
            f"{path} is damaged (document {wrong_ones[0]!r} has no split, place, digest or size); fetch the texts again"
        )
    return manifest


def _is_package(facts: object) -> bool:
    if not isinstance(facts, dict):
        return False
    return isinstance(facts.get("licence"), str) and isinstance(facts.get("archive", facts.get("version")), str)


def _is_document(name: str, known: object) -> bool:
    """Whether a manifest says of a document what `write_folder` says; its place follows from split and name."""
    if not isinstance(known, dict) or known.get("split") not in SPLITS:
        return False
    place = f"{known['split']}/{file_name(name)}"
    return known.get("path") == place and isinstance(known.get("sha256"), str) and isinstance(known.get("bytes"), int)


def file_name(document: str) -> str:
    """The name of a document's file."""
    return document.replace("/", "--") + ".txt"
