"""Whatever a file holds, reading it ends soon, in bounded memory, with a value or with one error of ours."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import SpardaError
from sparda_core.plan import StepPlan
from tests.cases import readers
from tests.cases.readers import BINARY, DOCUMENTS, Reader
from tests.cases.spoil import spoiled_bytes, spoiled_json, spoiled_toml
from tests.profiles import share

#: A reader costs some milliseconds an example, and there are more than thirty.
EXAMPLES = share(10)
#: Memory that reading may take: many times what any of these files needs.
MOST_BYTES = 256 << 20
numbers = st.integers(0, 2**20)


@pytest.fixture(scope="module", autouse=True)
def _made_files_are_removed() -> Iterator[None]:
    yield
    readers.clear()


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """A size that is believed without a look shows in what was allocated, touched or not."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, "a file's sizes were believed"
    finally:
        tracemalloc.stop()


def outcome(reader: Reader, path: Path, folder: Path) -> str:
    """"read" or "refused"; anything else is raised. What was there is still there, and nothing half-written."""
    before = {file.name for file in folder.rglob("*")}
    try:
        with little_memory(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            reader.read(path)
    except SpardaError as refused:
        return "refused" if str(refused).strip() else "refused without a word"
    finally:
        after = {file.name for file in folder.rglob("*")}
        assert before <= after
        assert not [name for name in after if name.endswith(".part")]
    return "read"


def ids(some: tuple[Reader, ...]) -> list[str]:
    return [reader.name.replace(" ", "-") for reader in some]


@pytest.mark.parametrize("reader", [*DOCUMENTS, *BINARY], ids=[*ids(DOCUMENTS), *(f"bytes-{n}" for n in ids(BINARY))])
def test_a_good_file_is_read(reader: Reader, tmp_path: Path) -> None:
    assert outcome(reader, reader.made(tmp_path), tmp_path) == "read"


@pytest.mark.parametrize("reader", DOCUMENTS, ids=ids(DOCUMENTS))
@settings(max_examples=EXAMPLES)
@given(node=numbers, how=numbers)
def test_whatever_a_file_holds_reading_it_ends_in_a_value_or_in_one_error_of_ours(
    reader: Reader, node: int, how: int
) -> None:
    assert reader.text is not None
    assert reader.put is not None
    spoil = spoiled_json if reader.language == "json" else spoiled_toml
    with tempfile.TemporaryDirectory() as folder:
        path = reader.made(Path(folder))
        reader.put(path, spoil(reader.text(path), node, how))
        assert outcome(reader, path, Path(folder)) in ("read", "refused")


@pytest.mark.parametrize("reader", DOCUMENTS, ids=ids(DOCUMENTS))
def test_what_is_no_document_at_all_is_refused(reader: Reader, tmp_path: Path) -> None:
    assert reader.put is not None
    path = reader.made(tmp_path)
    for text in ("", "null", "[" * 100_000, "\x00", "7"):
        reader.put(path, text)
        if reader.name != "forecast .pt" or text:  # nothing said is nothing wrong there
            assert outcome(reader, path, tmp_path) == "refused", text[:9]


@pytest.mark.parametrize("reader", BINARY, ids=ids(BINARY))
@settings(max_examples=EXAMPLES)
@given(kind=numbers, at=st.integers(0, 2**40), value=st.integers(0, 2**60))
def test_a_file_with_bytes_cut_off_changed_or_put_in_is_read_or_refused(
    reader: Reader, kind: int, at: int, value: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = reader.made(Path(folder))
        path.write_bytes(spoiled_bytes(path.read_bytes(), kind, at, value))
        assert outcome(reader, path, Path(folder)) in ("read", "refused")


@settings(max_examples=EXAMPLES)
@given(node=numbers, how=numbers)
def test_a_plan_that_is_taken_says_the_same_when_it_is_written(node: int, how: int) -> None:
    """A text in the place of a number would be taken for one by whoever is careless."""
    (reader,) = (one for one in DOCUMENTS if one.name == "plan")
    assert reader.text is not None
    with tempfile.TemporaryDirectory() as folder:
        text = spoiled_json(reader.text(reader.made(Path(folder))), node, how)
    try:
        plan = StepPlan.from_json(text)
    except SpardaError:
        return
    assert StepPlan.from_json(plan.to_json()) == plan
    assert all(isinstance(value, int) for op in plan for value in (op.layer, op.source, plan.lead))


def test_the_check_notices_a_reader_that_is_not_careful(tmp_path: Path) -> None:
    (plan,) = (one for one in DOCUMENTS if one.name == "plan")
    careless = Reader(name="careless", write=plan.write, read=lambda path: json.loads("{}")[path.name])
    with pytest.raises(KeyError):
        outcome(careless, careless.made(tmp_path), tmp_path)
    greedy = Reader(name="greedy", write=plan.write, read=lambda path: np.empty(MOST_BYTES + 1, np.uint8))
    with pytest.raises(AssertionError, match="sizes were believed"):
        outcome(greedy, greedy.made(tmp_path), tmp_path)
