"""Does a GGUF's section of keys and values end within the file? Asked before the file is read.

The reading library believes every count: a damaged one makes it run on beyond the end of the file,
for hours and into ever more memory. Here each step stays inside the file, or the file is refused.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from sparda_core.errors import WeightsError

#: Bytes of a value of each type; 8 is a text, 9 a list.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9
#: Magic, version, tensors, pairs.
_HEADER = struct.Struct("<4sIQQ")
#: Bytes of the smallest description of a tensor: a name's length, axes, type and place.
_TENSOR_BYTES = 8 + 4 + 4 + 8


def check_bounds(path: Path, *, source: str, hint: str) -> None:
    """Raise WeightsError unless `path` is a little-endian GGUF whose pairs end within the file; OSError as reading."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                _walk(content)
        except (ValueError, struct.error) as wrong:
            raise WeightsError(f"{source} is not a complete GGUF ({wrong}); {hint}") from wrong


def _walk(content: mmap.mmap) -> None:
    magic, _, tensors, pairs = _HEADER.unpack_from(content)
    if magic != b"GGUF":
        raise ValueError(f"it begins with {magic!r}")
    at = _HEADER.size
    for _ in range(pairs):
        at = _after_text(content, at)
        (kind,) = struct.unpack_from("<I", content, at)
        at = _after_value(content, at + 4, kind)
    if at + tensors * _TENSOR_BYTES > len(content):
        raise ValueError(f"{tensors} tensors do not fit into it")


def _after_text(content: mmap.mmap, at: int) -> int:
    (length,) = struct.unpack_from("<Q", content, at)
    return _inside(content, at + 8 + length)


def _after_value(content: mmap.mmap, at: int, kind: int) -> int:
    if kind == _TEXT:
        return _after_text(content, at)
    if kind == _LIST:
        return _after_list(content, at)
    if kind not in _SIZES:
        raise ValueError(f"a value of type {kind} at byte {at} is unknown")
    return _inside(content, at + _SIZES[kind])


def _after_list(content: mmap.mmap, at: int) -> int:
    kind, count = struct.unpack_from("<IQ", content, at)
    at += 12
    if kind in _SIZES:
        return _inside(content, at + count * _SIZES[kind])
    if kind != _TEXT:
        raise ValueError(f"a list of type {kind} at byte {at} is not supported")
    for _ in range(count):
        at = _after_text(content, at)
    return at


def _inside(content: mmap.mmap, at: int) -> int:
    if at > len(content):
        raise ValueError(f"it ends at byte {len(content)}, and something in it at byte {at}")
    return at
