from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.evaluate.tasks import copy_task, passkey_task


class Letters:
    """One id a character, so that prompts can be read back."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def text_of(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))


FILLER = [ord(".")] * 3000


@given(tokens=st.integers(300, 3000), depth=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_passkey_prompt_is_exactly_as_long_as_asked_and_holds_its_key_twice(
    tokens: int, depth: float, seed: int
) -> None:
    task = passkey_task(Letters(), FILLER, tokens=tokens, depth=depth, seed=seed)
    prompt = text_of(task.prompt)
    assert len(task.prompt) == tokens
    assert len(task.note) == 5
    assert prompt.count(task.note) == 2
    assert text_of(task.answer) == task.note
    assert prompt.endswith("The pass key is ")
    where = prompt.index(task.note)
    assert abs(where - depth * tokens) < 210  # head, needle and question take the rest


def test_a_space_that_is_no_token_of_its_own_stays_with_the_answer() -> None:
    class Words(Letters):
        def encode(self, text: str) -> list[int]:
            return [1000] if text == " " else super().encode(text)

    task = passkey_task(Words(), FILLER, tokens=400)
    assert text_of(task.answer) == f" {task.note}"
    assert len(task.prompt) == 400


def test_the_key_depends_on_the_seed_alone() -> None:
    keys = {passkey_task(Letters(), FILLER, tokens=n, seed=5).note for n in (400, 2000)}
    assert len(keys) == 1
    assert len({passkey_task(Letters(), FILLER, tokens=400, seed=s).note for s in range(20)}) > 15


def test_a_copy_prompt_is_passage_filler_and_the_start_of_the_passage() -> None:
    passage = list(range(100, 164))
    task = copy_task(passage, FILLER, tokens=500)
    assert len(task.prompt) == 500
    assert list(task.prompt[:64]) == passage
    assert list(task.prompt[-8:]) == passage[:8]
    assert list(task.answer) == passage[8:]
    assert task.tokens == task.prompt + task.answer
    later = copy_task(passage, FILLER, tokens=500, before=30)
    assert later.prompt == (*FILLER[:30], *passage, *FILLER[: 500 - 30 - 64 - 8], *passage[:8])
    assert later.answer == task.answer


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"depth": 1.5}, "depth=1.5"),
        ({"tokens": 40}, "tokens=40 must be >"),
        ({"tokens": 9999}, "filler has 3000 tokens"),
        ({"digits": 0}, "digits=0"),
    ],
)
def test_a_passkey_that_cannot_be_built_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        passkey_task(Letters(), FILLER, **({"tokens": 400} | wrong))  # type: ignore[arg-type]


def test_a_passage_no_longer_than_its_lead_in_is_refused() -> None:
    with pytest.raises(ConfigError, match="lead_in=8"):
        copy_task([1] * 8, FILLER, tokens=100)
    with pytest.raises(ConfigError, match="before=90 must be"):
        copy_task([1] * 20, FILLER, tokens=100, before=90)
