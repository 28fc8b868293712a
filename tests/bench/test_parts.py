from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest

from sparda_core.bench.parts import PartStore, to_plain, write_json


def test_a_finished_part_is_not_done_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> dict[str, float]:
        calls.append(1)
        return {"kl": 0.5}

    for _ in range(2):  # the second store is a second run
        assert PartStore(tmp_path, key="a").get("quality x", make) == {"kl": 0.5}
    assert len(calls) == 1
    assert PartStore(tmp_path, key="b").find("quality x") is None


def test_a_part_that_fails_leaves_the_others_and_nothing_of_itself(tmp_path: Path) -> None:
    store = PartStore(tmp_path, key="a")
    store.get("one", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        store.get("two", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert store.find("one") == 1
    assert store.find("two") is None
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


@pytest.mark.parametrize("rest", ["", '{"key": "a", "resu', "[1, 2]", "null"])
def test_a_file_that_is_not_a_part_is_as_good_as_none(tmp_path: Path, rest: str) -> None:
    (tmp_path / "one.json").write_text(rest)
    assert PartStore(tmp_path, key="a").get("one", lambda: 7) == 7


def test_clear_leaves_nothing(tmp_path: Path) -> None:
    store = PartStore(tmp_path / "parts", key="a")
    store.get("one", lambda: 1)
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_plain_values_are_strict_json(tmp_path: Path) -> None:
    @attrs.frozen
    class Point:
        x: float
        ids: np.ndarray

    value = {"point": Point(float("nan"), np.arange(2)), "where": Path("a"), 3: (np.float32(0.5), float("inf"), True)}
    assert to_plain(value) == {"point": {"x": None, "ids": [0, 1]}, "where": "a", "3": [0.5, None, True]}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text())["3"] == [0.5, None, True]
