from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.evaluate.far_tasks import draw_task, keys_task, variables_task
from tests.evaluate.test_tasks import FILLER, Letters, text_of


@given(tokens=st.integers(900, 2900), keys=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_prompt_with_keys_holds_every_needle_whole_and_asks_for_one(tokens: int, keys: int, seed: int) -> None:
    task = keys_task(Letters(), FILLER, tokens=tokens, keys=keys, seed=seed)
    prompt = text_of(task.prompt)
    found = dict(re.findall(r"magic number for (\w+) is (\d{5})\.", prompt))
    assert len(task.prompt) == tokens
    assert len(found) == keys
    asked = re.search(r"What is the special magic number for (\w+)\?", prompt)
    assert asked is not None
    assert text_of(task.answer) == found[asked[1]]
    assert text_of(task.prompt[-task.asked :]).startswith("\n\nWhat is")


@given(tokens=st.integers(900, 2900), hops=st.integers(1, 4), chains=st.integers(1, 3), seed=st.integers(0, 99))
def test_following_the_assignments_of_a_prompt_gives_its_answer(
    tokens: int, hops: int, chains: int, seed: int
) -> None:
    task = variables_task(Letters(), FILLER, tokens=tokens, hops=hops, chains=chains, seed=seed)
    prompt = text_of(task.prompt)
    values: dict[str, str] = {}
    for name, right in re.findall(r"VAR ([A-Z]{5}) = (VAR [A-Z]{5}|\d{5})", prompt):
        values[name] = values[right.removeprefix("VAR ")] if right.startswith("VAR") else right
    asked = re.search(r"assigned the value (\d{5})", prompt)
    assert asked is not None
    assert len(task.prompt) == tokens
    assert len(values) == chains * (hops + 1)
    assert [n for n, value in values.items() if value == asked[1]] == text_of(task.answer).strip().split(", ")


@pytest.mark.parametrize("name", ["passkey", "keys", "copy", "variables"])
def test_drawn_tasks_depend_on_the_seed_alone_and_fit(name: str) -> None:
    filler = [97 + i * i % 23 for i in range(3000)]
    one, same, other = (draw_task(name, Letters(), filler, tokens=1200, seed=s) for s in (4, 4, 5))
    assert one == same
    assert one != other
    assert len(one.prompt) == 1200
    assert 1 <= one.asked < 200


def test_the_passage_to_copy_stands_once_before_it_is_asked_for() -> None:
    filler = [97 + i * i * i % 24 for i in range(3000)]
    rest = [1000 + i for i in range(3000)]
    for seed in range(5):
        task = draw_task("copy", Letters(), [*filler[:40], *rest], tokens=900, seed=seed)
        start = task.prompt[-task.asked :]
        places = [at for at in range(len(task.prompt)) if task.prompt[at : at + len(start)] == start]
        assert len(places) == 2


def test_what_leaves_no_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="add text"):
        draw_task("keys", Letters(), FILLER[:100], tokens=900, seed=0)
    with pytest.raises(ConfigError, match="leaves"):
        variables_task(Letters(), FILLER, tokens=200)
    with pytest.raises(ConfigError, match="keys=0"):
        keys_task(Letters(), FILLER, tokens=900, keys=0)
    with pytest.raises(ConfigError, match="unknown"):
        draw_task("riddle", Letters(), FILLER, tokens=900, seed=0)
