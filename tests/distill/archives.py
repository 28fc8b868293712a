"""Packages made by hand: a Debian one, a source distribution and R's lazy-load data."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Literal


def tar(members: Mapping[str, bytes], mode: Literal["w:gz", "w:xz"]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(members: Mapping[str, bytes]) -> bytes:
    def part(name: str, data: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        return head + data + b"\n" * (len(data) % 2)

    inner = tar({f"./{path}": data for path, data in members.items()}, "w:xz")
    return b"!<arch>\n" + part("debian-binary", b"2.0\n") + part("control.tar.xz", b"odd") + part("data.tar.xz", inner)


def _i(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def _chars(text: str | None) -> bytes:
    return _i(9, -1) if text is None else _i(9, len(text.encode())) + text.encode()


def _strings(lines: Sequence[str], attributes: bytes = b"") -> bytes:
    return _i(16 | (0x200 if attributes else 0), len(lines)) + b"".join(map(_chars, lines)) + attributes


def _names(names: Sequence[str], *, known: bool) -> bytes:
    """A pairlist with one entry, `names`; the symbol is spelled out once and referred to after."""
    symbol = _i(255 | 1 << 8) if known else _i(1) + _chars("names")
    return _i(2 | 0x400) + symbol + _strings(names) + _i(254)


def _document(value: bytes) -> bytes:
    return b"X\n" + _i(3, 0x040200, 0x030500, 5) + b"UTF-8" + value


def lazy_load(texts: Mapping[str, Sequence[str]]) -> tuple[bytes, bytes]:
    """The .rdx and the .rdb of a package's data."""
    chunks, places = b"", []
    for lines in texts.values():
        raw = _document(_strings(lines))
        chunk = struct.pack(">I", len(raw)) + zlib.compress(raw)
        places.append((len(chunks), len(chunk)))
        chunks += chunk
    variables = _i(19 | 0x200, len(places)) + b"".join(_i(13, 2, *place) for place in places)
    variables += _names(list(texts), known=False)
    index = _i(19 | 0x200, 3) + variables + _i(19, 0) + _i(10, 1, 1) + _names(
        ["variables", "references", "compressed"], known=True
    )
    return zlib.compress(_document(index)), chunks
