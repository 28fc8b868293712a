"""A cache of expanded weights, so that only the first load of a quantised file takes seconds.

One safetensors file a source and dtype, under $SPARDA_CACHE or ~/.cache/sparda. Its metadata holds
the source's fingerprint, the constants and the tokenizer; a file that does not fit is written anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch

from sparda_core.errors import WeightsError
from sparda_core.files import parse_json
from sparda_core.models.config import DecoderConfig
from sparda_core.models.files import read_metadata, read_tensors, write_tensors
from sparda_core.shapes import ModelShape

_FORMAT = "1"
_log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class CachedModel:
    """Constants, tensors and the tokenizer's JSON text."""

    config: DecoderConfig
    tensors: Mapping[str, torch.Tensor]
    tokenizer_json: str


def cache_folder() -> Path:
    """$SPARDA_CACHE, or ~/.cache/sparda."""
    chosen = os.environ.get("SPARDA_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sparda"


def cache_file(source: Path, dtype: torch.dtype) -> Path:
    """Where the expanded weights of `source` live in `dtype`; the same file for every version of it."""
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / f"{source.stem}-{place}-{str(dtype).removeprefix('torch.')}.safetensors"


def _fingerprint(source: Path) -> str:
    known = source.stat()
    return f"{_FORMAT}:{known.st_size}:{known.st_mtime_ns}"


def load_cached(source: Path, dtype: torch.dtype) -> CachedModel | None:
    """The cached form of `source`, tensors mapped from disk; None if absent, outdated or damaged."""
    path = cache_file(source, dtype)
    if not path.exists():
        return None
    try:
        metadata = read_metadata(path)
        if metadata.get("fingerprint") != _fingerprint(source):
            return None
        tensors, _ = read_tensors(path)
        fields = parse_json(metadata["config"])
        config = DecoderConfig(**fields | {"shape": ModelShape(**fields["shape"])})
        return CachedModel(config, tensors, metadata["tokenizer"])
    except (WeightsError, KeyError, TypeError, ValueError) as error:
        _log.warning("cache %s is damaged and will be rewritten: %s", path, error)
        return None


def store(source: Path, dtype: torch.dtype, model: CachedModel) -> None:
    """Write the cache; where that fails (no room, no permission) say so and go on without."""
    metadata = {
        "fingerprint": _fingerprint(source),
        # Without what is as usual, so that a new constant of some other family leaves this file good.
        "config": json.dumps(attrs.asdict(model.config, filter=lambda field, value: value != field.default)),
        "tokenizer": model.tokenizer_json,
    }
    path = cache_file(source, dtype)
    try:
        write_tensors(path, model.tensors, metadata)
    except OSError as error:
        _log.warning("weights are not cached (%s); set SPARDA_CACHE to a folder with room", error)
