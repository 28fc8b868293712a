"""Text comes from files, folders and data sets alike, and its documents are split by what they say."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparda_core.distill.prepare import Need, is_held_out, prepare, reading_order
from sparda_core.distill.sources import Documents, HuggingFace, Ids, Mosaic, Source, TextFiles
from sparda_core.distill.texts import Document
from sparda_core.errors import ConfigError


def encode(text: str) -> list[int]:
    return list(text.encode())


def need(**changes: Any) -> Need:
    return Need(**{"tokens": 10**6, "encode": encode, "vocab": 256, "held_out": 0.0, **changes})


def texts_of(source: Source) -> dict[str, str]:
    return {item.name: item.text for i in range(len(source)) for item in source.read(i) if isinstance(item, Document)}


def many(count: int, words: int = 5) -> list[Document]:
    return [Document(f"d{i}", f"document {i} " * words) for i in range(count)]


def test_a_folder_gives_its_files_that_match_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/two.txt", "a.txt", "b/one.md", ".git/hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    assert list(texts_of(TextFiles([tmp_path]))) == ["a.txt", "b/one.md", "b/two.txt"]
    assert texts_of(TextFiles([tmp_path], "**/*.txt")) == {"a.txt": "text of a.txt", "b/two.txt": "text of b/two.txt"}
    before = TextFiles([tmp_path]).fingerprint()
    (tmp_path / "a.txt").write_text("other")
    assert TextFiles([tmp_path]).fingerprint() != before
    for paths, pattern, said in (([tmp_path], "*.rst", "no file that matches"), ([tmp_path / "no"], "*", "cannot be")):
        with pytest.raises(ConfigError, match=said):
            TextFiles(paths, pattern)
    for path in ("/dev/null", "/dev/zero"):  # read twice, they would give nothing, or never end
        with pytest.raises(ConfigError, match="is not an ordinary file"):
            TextFiles([Path(path)])


def test_the_split_is_by_content_and_about_as_large_as_asked_for(tmp_path: Path) -> None:
    found = prepare([Documents(many(400))], need(held_out=0.2, windows=400), tmp_path)
    assert found.documents + found.held_documents == 400
    assert 50 < found.held_documents < 110
    renamed = [Document(f"x{d.name}", d.text) for d in many(400)[::-1]][:300]
    assert [is_held_out(d, 0.2) for d in many(400)[::-1][:300]] == [is_held_out(d, 0.2) for d in renamed]
    assert not set(found.train.names) & set(found.held.names)
    wide, narrow = (Ids(kind, np.arange(9, dtype=kind)) for kind in ("int64", "int32"))
    assert [is_held_out(wide, i / 9) for i in range(9)] == [is_held_out(narrow, i / 9) for i in range(9)]


def test_reading_ends_once_there_are_enough_tokens_and_held_out_windows(tmp_path: Path) -> None:
    few = prepare([Documents(many(400))], need(tokens=200), tmp_path)
    assert 200 <= len(few.train.ids) < 300
    assert few.held_documents == 0
    both = prepare([Documents(many(400))], need(tokens=200, held_out=0.1, windows=3, window=50), tmp_path)
    assert len(both.train.ids) < 300
    assert sum(np.diff(both.held.ends, prepend=0) >= 50) == 3


def test_documents_keep_their_ends_and_another_seed_reads_them_in_another_order(tmp_path: Path) -> None:
    found = prepare([Documents(many(30))], need(), tmp_path)
    starts = [0, *found.train.ends.tolist()]
    got = {bytes(found.train.ids[a:b].astype(np.uint8)).decode() for a, b in itertools.pairwise(starts)}
    assert got == {d.text for d in many(30)}
    other = prepare([Documents(many(30))], need(seed=1), tmp_path)
    assert other.train.names != found.train.names
    assert sorted(other.train.names) == sorted(found.train.names)


def test_a_second_run_finds_what_the_first_one_encoded(tmp_path: Path) -> None:
    calls: list[str] = []

    def counting(text: str) -> list[int]:
        calls.append(text)
        return encode(text)

    first = prepare([Documents(many(30))], need(encode=counting), tmp_path)
    seen = len(calls)
    again = prepare([Documents(many(30))], need(encode=counting), tmp_path)
    assert len(calls) == seen + 1  # the probe by which a tokenizer is known
    assert again.train.sha256 == first.train.sha256
    prepare([Documents(many(31))], need(encode=counting), tmp_path)
    assert len(calls) > seen + 20


def test_text_prepared_from_the_ids_of_one_tokenizer_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    class Numbers:
        def __len__(self) -> int:
            return 1

        def read(self, index: int) -> Any:
            yield Ids("n", np.array([7, 8]))

        def fingerprint(self) -> str:
            return "numbers"

    def prepared(by: str) -> bytes:
        decoding = need(decode=lambda ids: "".join(f"{by}{i}" for i in ids), decoder=by)
        return bytes(prepare([Numbers()], decoding, tmp_path).train.ids.astype(np.uint8))

    assert [prepared("a"), prepared("b"), prepared("a")] == [b"a7a8", b"b7b8", b"a7a8"]


def test_shares_hold_at_every_point_until_a_source_ends() -> None:
    sources = [Documents(many(300)), Documents(many(100))]
    order = list(reading_order(sources, [3.0, 1.0], seed=0))
    assert len(set(order)) == 400
    for stop in (40, 200, 400):
        assert abs(sum(number == 0 for number, _ in order[:stop]) / stop - 0.75) < 0.02


def test_ids_of_another_tokenizer_are_refused_or_encoded_anew(tmp_path: Path) -> None:
    class Numbers:
        def __len__(self) -> int:
            return 1

        def read(self, index: int) -> Any:
            yield Ids("n", np.array([7, 300, 8]))

        def fingerprint(self) -> str:
            return "numbers"

    with pytest.raises(ConfigError, match=r"token 300 must be in \[0, 256\)"):
        prepare([Numbers()], need(), tmp_path)
    spelled = prepare([Numbers()], need(decode=lambda ids: "-".join(map(str, ids))), tmp_path)
    assert bytes(spelled.train.ids.astype(np.uint8)) == b"7-300-8"
    assert not list(tmp_path.glob(".*"))


def test_a_hugging_face_dataset_on_disk_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    arrow = pytest.importorskip("pyarrow")

    def made(**columns: Any) -> Any:  # given a name, it hashes nothing: with some versions it cannot
        return datasets.Dataset(datasets.table.InMemoryTable(arrow.table(columns)), fingerprint=str(sorted(columns)))

    rows = made(id=[1, 2], text=["first text", "second"])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(tmp_path / "two")
    assert texts_of(HuggingFace(tmp_path / "one")) == {"one/0": "first text", "one/1": "second"}
    assert len(HuggingFace(tmp_path / "two", split="test")) == 1
    made(input_ids=[[1, 2, 3]]).save_to_disk(tmp_path / "ids")
    (item,) = HuggingFace(tmp_path / "ids").read(0)
    assert isinstance(item, Ids)
    assert item.ids.tolist() == [1, 2, 3]
    assert HuggingFace(tmp_path / "one").fingerprint() != HuggingFace(tmp_path / "ids").fingerprint()
    for path, options, said in (
        (tmp_path / "one", {"column": "body"}, "no column body; it has id, text"),
        (tmp_path / "two", {"split": "dev"}, "no split 'dev'; it has train, test"),
        (tmp_path, {}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            HuggingFace(path, **options)


# The library leaves its index open, and whoever collects it is told.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_mosaic_shards_are_read_and_cut_where_their_documents_end(tmp_path: Path) -> None:
    streaming = pytest.importorskip(
        "streaming", reason="the extra `mds` is not installed (its library wants an older transformers)"
    )
    columns = {"input_ids": "ndarray:uint32", "indices": "ndarray:uint32"}
    with streaming.MDSWriter(out=str(tmp_path / "packed"), columns=columns) as writer:
        for start in (0, 100):
            ids = np.arange(start, start + 40, dtype=np.uint32)
            writer.write({"input_ids": ids, "indices": np.array([[0, 15], [15, 40]], dtype=np.uint32)})
    with streaming.MDSWriter(out=str(tmp_path / "plain"), columns={"text": "str"}) as writer:
        writer.write({"text": "hello"})
    source = Mosaic(tmp_path / "packed")
    found = prepare([source], need(vocab=200), tmp_path / "cache")
    assert sorted(np.diff(found.train.ends, prepend=0).tolist()) == [15, 15, 25, 25]
    assert sorted(found.train.names) == ["packed/0#0", "packed/0#1", "packed/1#0", "packed/1#1"]
    assert texts_of(Mosaic(tmp_path / "plain")) == {"plain/0": "hello"}
    assert len({source.fingerprint(), Mosaic(tmp_path / "plain").fingerprint()}) == 2
    with pytest.raises(ConfigError, match="cannot be read"):
        Mosaic(tmp_path)
    with pytest.raises(ConfigError, match="no column text; it has"):
        Mosaic(tmp_path / "packed", column="text")


def test_a_source_whose_library_is_absent_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    monkeypatch.setitem(__import__("sys").modules, "streaming", None)
    with pytest.raises(ConfigError, match=r"sparda\[datasets\]"):
        HuggingFace(tmp_path)
    with pytest.raises(ConfigError, match=r"sparda\[mds\]"):
        Mosaic(tmp_path)
