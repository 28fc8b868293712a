"""Training and held-out texts never meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.distill.texts import (
    HELD_OUT_MODULES,
    Document,
    content_hash,
    held_out_documents,
    read_documents,
    token_stream,
    training_documents,
)
from sparda_core.errors import ConfigError


def long_paragraphs(text: str) -> set[str]:
    return {p for part in text.split("\n\n") if len(p := " ".join(part.split())) >= 200}


def test_no_held_out_document_is_trained_on_nor_a_help_topic_that_repeats_it() -> None:
    held, trained = held_out_documents(), training_documents()
    assert {f"{name}.py" for name in HELD_OUT_MODULES} <= {d.name for d in held}
    assert not {d.name for d in held} & {d.name for d in trained}
    assert not {d.text for d in held} & {d.text for d in trained}
    known = {p for d in held if d.name.startswith("help:") for p in long_paragraphs(d.text)}
    assert known
    assert not [d.name for d in trained if d.name.startswith("help:") and known & long_paragraphs(d.text)]


def test_there_is_text_enough_to_train_on_and_no_installed_package_is_in_it() -> None:
    trained = training_documents()
    assert sum(len(d.text) for d in trained) > 5_000_000
    assert [d.name for d in trained] == [d.name for d in training_documents()]
    assert not [d.name for d in trained if "site-packages" in d.name or d.name.startswith("test/")]


def test_the_hash_notices_a_changed_text_a_changed_name_and_a_moved_boundary() -> None:
    base = [Document("a", "one"), Document("b", "two")]
    assert content_hash(base) == content_hash(base[::-1])
    for other in (
        [Document("a", "one"), Document("b", "twp")],
        [Document("a", "one"), Document("c", "two")],
        [Document("a", "onet"), Document("b", "wo")],
        base[:1],
    ):
        assert content_hash(other) != content_hash(base)


def test_a_token_stream_is_whole_documents_in_a_seeded_order_until_there_are_enough() -> None:
    documents = [Document(str(i), "x" * 10) for i in range(8)]

    def encode(text: str) -> list[int]:
        return list(range(len(text)))

    ids_N, used = token_stream(documents, encode, tokens=25, seed=1)
    assert (len(ids_N), len(used)) == (30, 3)
    assert used == token_stream(documents, encode, tokens=25, seed=1)[1]
    assert used != token_stream(documents, encode, tokens=25, seed=2)[1]
    assert len(token_stream(documents, encode, tokens=1000, seed=1)[0]) == 80


def test_unreadable_and_empty_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for name, said in (("empty.txt", "is empty"), ("binary.txt", "UTF-8"), ("absent.txt", "cannot be read")):
        with pytest.raises(ConfigError, match=said):
            read_documents([tmp_path / name])
