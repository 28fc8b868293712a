"""R's lazy-load databases, as far as character vectors in them: pairs of .rdx (an index) and .rdb (chunks).

A reader of the serialisation described in "R Internals", section 1.8, and of R_lazyLoadDBfetch's chunks. Only what
data sets of text need is read; anything else is refused.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from typing import Any

from sparda_core.distill.corpus.archives import MOST_BYTES
from sparda_core.errors import RecordingError

_NOTHING = {254, 242, 253, 241, 251, 252}  # NILVALUE and environments that have no value of their own
_REFERENCE, _SYMBOL, _PAIRS, _CHARS = 255, 1, 2, 9
_LOGICAL, _INTEGERS, _REALS, _STRINGS, _LIST = 10, 13, 14, 16, 19
_ATTRIBUTES, _TAG = 0x200, 0x400
_EITHER = 32 + zlib.MAX_WBITS  # zlib's and gzip's head alike
_MALFORMED = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, struct.error,
    zlib.error, lzma.LZMAError,
)  # fmt: skip


def read_texts(index: bytes, chunks: bytes) -> dict[str, str]:
    """Every character vector of a database by name, its lines joined by newlines.

    index, chunks  contents of the .rdx and .rdb files
    raises         RecordingError where they are malformed or hold something else
    """
    try:
        contents, attributes = _value(_inflated(zlib.decompressobj(_EITHER), index, MOST_BYTES))
        variables = contents[attributes["names"].index("variables")]
        places, names = variables[0], variables[1]["names"]
        found = {}
        for name, (offset, length) in zip(names, places, strict=True):
            value = _value(_chunk(chunks[offset : offset + length]))
            lines = value[0] if isinstance(value, tuple) else value
            if sum(map(len, lines)) > MOST_BYTES:  # one line, referred to often
                raise ValueError(f"{name} has more than {MOST_BYTES} characters")
            found[str(name)] = "\n".join(lines) + "\n"
    except _MALFORMED as wrong:
        raise RecordingError(f"R data cannot be read ({wrong!r}); fetch the package again") from wrong
    return found


def _chunk(raw: bytes) -> bytes:
    """A chunk: its length, then zlib, or a letter for the method and its data."""
    (length,) = struct.unpack_from(">I", raw)
    kind = raw[4:5]
    if length > MOST_BYTES:
        raise ValueError(f"a chunk of {length} bytes, at most {MOST_BYTES} are read")
    if kind == b"2":
        data = _inflated(bz2.BZ2Decompressor(), raw[5:], length)
    elif kind == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2}]
        data = _inflated(lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), raw[5:], length)
    else:
        data = _inflated(zlib.decompressobj(), raw[4:], length)
    if len(data) != length:
        raise ValueError(f"a chunk has {len(data)} bytes, its head says {length}")
    return data


def _inflated(method: Any, raw: bytes, most: int) -> bytes:
    """What `raw` unpacks to; raises ValueError for more than `most` bytes, and where it ends too early."""
    data: bytes = method.decompress(raw, most + 1)
    if len(data) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    if not method.eof:
        raise ValueError("it ends in the middle")
    return data


def _value(data: bytes) -> Any:
    return _Reader(data).document()


class _Reader:
    """One serialised value in XDR form; values with attributes come as (value, {name: attribute})."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._known = data, 0, list[Any]()

    def document(self) -> Any:
        if self._data[:2] != b"X\n":
            raise ValueError("it is not R's binary form")
        self._at = 2
        version = self._integer()
        self._at += 8  # versions of R that wrote it, and that can read it
        if version == 3:
            self._bytes(self._integer())  # the native encoding
        return self._item(self._integer())

    def _integer(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise ValueError(f"{count} bytes are wanted after {self._at} of {len(self._data)}")
        self._at += count
        return self._data[self._at - count : self._at]

    def _item(self, flags: int) -> Any:
        kind = flags & 0xFF
        if kind in _NOTHING:
            return None
        if kind == _REFERENCE:
            return self._known[(flags >> 8 or self._integer()) - 1]
        if kind == _SYMBOL:
            self._known.append(self._item(self._integer()))
            return self._known[-1]
        if kind == _CHARS:
            return self._characters()
        if kind == _PAIRS:
            return self._pairs(flags)
        value = self._vector(kind)
        return (value, dict(self._item(self._integer()))) if flags & _ATTRIBUTES else value

    def _characters(self) -> str | None:
        count = self._integer()
        if count == -1:
            return None
        raw = self._bytes(count)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    def _pairs(self, flags: int) -> list[tuple[Any, Any]]:
        pairs = []
        while flags & 0xFF == _PAIRS:
            if flags & _ATTRIBUTES:
                self._item(self._integer())
            name = self._item(self._integer()) if flags & _TAG else None
            pairs.append((name, self._item(self._integer())))
            flags = self._integer()
        self._item(flags)  # what ends the list
        return pairs

    def _vector(self, kind: int) -> Any:
        count = self._integer()
        if count == -1:
            count = (self._integer() << 32) + self._integer()
        if kind in (_STRINGS, _LIST):
            return [self._item(self._integer()) for _ in range(count)]
        if kind in (_INTEGERS, _LOGICAL):
            return list(struct.unpack(f">{count}i", self._bytes(4 * count)))
        if kind == _REALS:
            return list(struct.unpack(f">{count}d", self._bytes(8 * count)))
        raise ValueError(f"a value of R's type {kind}")
