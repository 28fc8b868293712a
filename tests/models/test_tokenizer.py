"""The tokenizer splits text as the model was trained to see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import WeightsError
from sparda_core.models.gguf import read_gguf
from sparda_core.models.load import load_model
from sparda_core.models.tokenizer import Tokenizer, tokenizer_from_file, tokenizer_from_gguf
from tests.models.gguf_files import write_gguf


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path)
    return tokenizer_from_gguf(read_gguf(path).fields, source="small")


def test_every_digit_is_its_own_token_although_a_merge_for_two_exists(small: Tokenizer) -> None:
    pieces = [small.decode([i]) for i in small.encode("the 1212 th")]
    assert pieces == ["th", "e", " ", "1", "2", "1", "2", " ", "th"]


def test_special_tokens_written_in_the_text_are_one_token_each(small: Tokenizer) -> None:
    ids = small.encode("th<3>th")
    assert [small.decode([i]) for i in ids] == ["th", "<3>", "th"]
    assert small.vocab == 300


@given(text=st.text(max_size=40))
def test_decode_undoes_encode(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text)) == text


def test_a_tokenizer_survives_its_own_json(small: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(small.to_json(), encoding="utf-8")
    text = "In 1789 <5>, the\n\n  12th \t of July: naïve 東京"
    assert tokenizer_from_file(file).encode(text) == small.encode(text)


def test_a_broken_tokenizer_file_is_one_clear_error(tmp_path: Path) -> None:
    for content in (b"{", b"\xff\xfe", b"{}"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(WeightsError, match=r"tokenizer\.json"):
            tokenizer_from_file(tmp_path / "tokenizer.json")
    with pytest.raises(WeightsError, match="merges"):
        tokenizer_from_gguf({"tokenizer.ggml.tokens": [], "tokenizer.ggml.pre": "smollm"}, source="x")


def with_settings(folder: Path, settings: Any, *, template: bool = False) -> Tokenizer:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    inner.add_special_tokens(["<s>"])
    if template:
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return tokenizer_from_file(folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("settings", "template", "want"),
    [
        ({}, False, [0, 1]),
        ({}, True, [2, 0, 1]),
        ({"add_bos_token": True, "bos_token": "<s>"}, False, [2, 0, 1]),
        ({"add_bos_token": True, "bos_token": {"content": "<s>", "lstrip": False}}, False, [2, 0, 1]),
        ({"add_bos_token": True, "bos_token": "<s>"}, True, [2, 0, 1]),
        ({"add_bos_token": False, "bos_token": "<s>"}, False, [0, 1]),
        ({"bos_token": "<s>"}, False, [0, 1]),
    ],
)
def test_a_prompt_begins_as_the_checkpoint_says_and_only_once(
    tmp_path: Path, settings: Any, want: list[int], *, template: bool
) -> None:
    tokenizer = with_settings(tmp_path, settings, template=template)
    assert tokenizer.prompt("ab") == want
    assert tokenizer.encode("ab") == [0, 1]


@pytest.mark.parametrize(
    "settings",
    [
        "{", "[" * 100_000, {"add_bos_token": True}, {"add_bos_token": True, "bos_token": 5},
        {"add_bos_token": True, "bos_token": "<unheard of>"},
    ],
)  # fmt: skip
def test_a_begin_token_that_is_not_there_is_refused(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(WeightsError, match="tokenizer"):
        with_settings(tmp_path, settings)


@pytest.mark.model
def test_the_real_tokenizer_gives_the_known_ids_and_splits_digits() -> None:
    tokenizer = load_model("smollm2").tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("x = 1024")] == ["x", " =", " ", "1", "0", "2", "4"]
    assert tokenizer.encode("<|im_start|>") == [1]
    text = Path(__file__).read_text(encoding="utf-8")
    assert tokenizer.decode(tokenizer.encode(text)) == text
