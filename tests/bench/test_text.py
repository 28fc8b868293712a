from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparda_core.bench.text import read
from sparda_core.errors import ConfigError


class Words:
    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


def reading(path: Path | None = None, **changed: Any) -> Any:
    settings = {"limit": 300, "context": 1000, "least": 100, "filler_tokens": 400} | changed
    return read(Words(), path=path, **settings)


def test_the_demo_reads_a_held_out_document_and_fills_tasks_from_others() -> None:
    got = reading()
    assert got.name == "help:types"
    assert len(got.tokens) == 300 < got.total
    assert len(got.filler) == 400
    assert got.filler[:300] != got.tokens
    assert got.opening.startswith("The standard type hierarchy")


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("word " * 500)
    got = reading(file, limit=None)
    assert (got.name, len(got.tokens), got.total) == ("mine.txt", 500, 500)


@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        ("", {}, "is empty"),
        ("   \n ", {}, "is empty"),
        ("word " * 2000, {"limit": None}, "has 2000 tokens, the model's context is 1000: cut it with --max-tokens"),
        ("word " * 2000, {"limit": 1500}, "max_tokens=1500 must be <= 1000"),
        ("word " * 50, {}, "gives 50 tokens, but the measurements need 100"),
        (b"\xff\xfe\xfa", {}, "cannot be read as UTF-8"),
    ],
)
def test_a_text_that_will_not_do_is_refused(
    tmp_path: Path, content: str | bytes, changed: dict[str, Any], message: str
) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        reading(file, **changed)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        reading(tmp_path / "nowhere.txt")
