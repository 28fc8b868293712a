"""Ways to spoil a file: documents node by node, bytes anywhere."""

from __future__ import annotations

import json
import re
from typing import Any

#: What stands in the place of a value; texts of JSON. Some are no JSON at all.
HOSTILE = (
    "null", "true", "0", "-1", "1.5", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "9" * 400, "9" * 5000,
    "4611686018427387904", "2147483648", '""', '"x"', '"\\ud800"', '"../../../etc/passwd"', '"/etc/passwd"',
    '"a\\u0000b"', "[]", "{}", "[1]", "[null]",
    '{"a": 1}', "[[1, 2], [3]]", "[" * 300 + "]" * 300, "[" * 100_000, '{"a":' * 100_000, "}", "", '["x", "x"]',
)  # fmt: skip
HOSTILE_TOML = (
    "true", "0", "-1", "1.5", "1e308", "-1e308", "1e999", "nan", "-inf", "9" * 400, "9" * 5000, "4611686018427387904",
    '""', '"x"', '"\\u0000"', "[]", "{}", "[1]", "[[1.0, 2.0], [3.0]]", "[" * 300 + "]" * 300, "[" * 100_000,
    "{a=" * 1000, "}", "", "1979-05-27", "1979-13-45", "07:32:00", "{ value = 1.0, unit = 5 }", "0x" + "f" * 6000,
)  # fmt: skip
_MARK = "\x00here\x00"


def nodes(value: Any) -> list[tuple[Any, ...]]:
    """Where every value of a document is: the keys that lead to it, the whole first."""
    found: list[tuple[Any, ...]] = [()]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [(key, *rest) for rest in nodes(inner)]
    return found


def spoiled_json(text: str, node: int, how: int) -> str:
    """The document with one of its values replaced, or (the first way) left out."""
    content = json.loads(text)
    every = nodes(content)
    where = every[node % len(every)]
    how %= len(HOSTILE) + 1
    if not where:
        return HOSTILE[how - 1]
    parent = content
    for key in where[:-1]:
        parent = parent[key]
    if how == 0:
        del parent[where[-1]]
        return json.dumps(content)
    parent[where[-1]] = _MARK
    return json.dumps(content).replace(json.dumps(_MARK), HOSTILE[how - 1])


def spoiled_toml(text: str, node: int, how: int) -> str:
    """The document with one of its values, or a number inside one, replaced, or (the first way) a line left out."""
    lines, inner = re.compile(r"(?<== ).+$", re.MULTILINE), re.compile(r"(?<=[=\[ ])-?\d+(?:\.\d+)?(?=[,\] ])")
    values = [*lines.finditer(text), *inner.finditer(text)]
    at = values[node % len(values)]
    how %= len(HOSTILE_TOML) + 1
    if how == 0:
        start = text.rfind("\n", 0, at.start()) + 1
        return text[:start] + text[at.end() + 1 :]
    return text[: at.start()] + HOSTILE_TOML[how - 1] + text[at.end() :]


def spoiled_bytes(content: bytes, kind: int, at: int, value: int) -> bytes:
    """Cut off, a few bytes changed, a number of 8 bytes put in, a piece left out or repeated."""
    size = max(1, len(content))
    at %= size
    kind %= 5
    if kind == 0:
        return content[:at]
    if kind == 1:
        few = value.to_bytes(8, "little")[: 1 + value % 4]
        return content[:at] + few + content[at + len(few) :]
    if kind == 2:
        big = (0, 1, 2**31, 2**32 - 1, 2**33, 2**62, 2**63, 2**64 - 1)[value % 8].to_bytes(8, "little")
        return content[:at] + big + content[at + 8 :]
    length = 1 + value % 64
    return content[:at] + (content[at + length :] if kind == 3 else content[at : at + length] + content[at:])
