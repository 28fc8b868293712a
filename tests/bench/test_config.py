from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.bench.config import CompareConfig
from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 8}, "slots=8 must be >= budget=16"),
        ({"policy": "fifo"}, "policy='fifo' is unknown; known: last-selection, lru"),
        ({"batch": 0}, "batch=0 must be a number >= 1"),
        ({"steps": True}, "steps=True"),
        ({"link_gb_s": 0}, "link_gb_s=0 must be"),
        ({"link_share": 1.5}, "link_share=1.5"),
        ({"device": "cuda"}, "device='cuda' is not supported"),
        ({"timed_steps": 10, "rounds": 4}, "timed_steps=10 must be a multiple of rounds=4"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_a_bad_setting_is_refused_with_its_name_and_bound(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompareConfig(**wrong)


def test_a_file_is_read_whole_and_the_demo_is_cut() -> None:
    assert CompareConfig().token_limit == 4096
    assert CompareConfig(full=True).token_limit == 8192
    assert CompareConfig(max_tokens=1000).token_limit == 1000
    assert CompareConfig(max_tokens=5000).token_limit == 4096
    assert CompareConfig(text="a.txt").token_limit is None
    assert CompareConfig(text="a.txt", max_tokens=5000).token_limit == 5000


def test_the_key_follows_the_settings_but_not_the_folder() -> None:
    one = CompareConfig(out="a")
    assert one.key("text") == attrs.evolve(one, out=Path("b")).key("text")
    others = [attrs.evolve(one, batch=2), attrs.evolve(one, spec=BlockSpec(budget=17))]
    assert len({one.key("text"), one.key("another text"), *(other.key("text") for other in others)}) == 4


def test_settings_become_plain_json_values() -> None:
    plain = CompareConfig(text="a.txt").to_plain()
    assert plain["text"] == "a.txt"
    assert plain["spec"]["budget"] == 16
