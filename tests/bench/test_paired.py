from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import attrs
import pytest

from sparda_core.bench.paired import Samples, Start, hiding, measure_in_turns
from sparda_core.errors import ConfigError


@attrs.define
class FakeResult:
    facts: int
    timeline: None = None


class FakeSession:
    """Counts its steps and notes when each ran, in a diary that all sessions share."""

    def __init__(self, name: str, diary: list[tuple[str, int]]) -> None:
        self.name, self.diary, self.closed = name, diary, False
        self.rows: tuple[int, ...] = ()
        self.cropped: list[int] = []

    def adopt(self, snapshot: Any) -> int:
        self.rows = (0,)
        return 0

    def crop(self, row: int, tokens: int) -> None:
        self.cropped.append(tokens)

    def fork(self, row: int) -> int:
        self.rows = (*self.rows, len(self.rows))
        return len(self.rows) - 1

    def decode(self, tokens: dict[int, int]) -> FakeResult:
        assert tuple(tokens) == self.rows
        (token,) = set(tokens.values())
        self.diary.append((self.name, token))
        return FakeResult(facts=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


class FakeCombination:
    def __init__(self, session: FakeSession) -> None:
        self.session = session

    def open(self, *, timeline: bool) -> FakeSession:
        return self.session


def samples(*rounds: tuple[float, ...]) -> Samples:
    return Samples(rounds=rounds, facts=())


def test_rounds_alternate_and_every_combination_sees_the_same_tokens() -> None:
    diary: list[tuple[str, int]] = []
    sessions = {name: FakeSession(name, diary) for name in "ab"}
    made = {name: FakeCombination(session) for name, session in sessions.items()}
    start = Start(snapshot=None, tokens=33, batch=3)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []
    got = measure_in_turns(
        made, start, range(6), warmup=2, rounds=2, progress=lambda done, total: seen.append((done, total))  # type: ignore[arg-type]
    )
    order = "aabbaabbaabb"
    assert "".join(name for name, _ in diary) == order
    for name in "ab":
        assert [token for who, token in diary if who == name] == list(range(6))
        facts: list[Any] = list(got[name].facts)
        assert facts == [2, 3, 4, 5]
        assert [len(part) for part in got[name].rounds] == [2, 2]
        assert sessions[name].cropped == [33]
        assert len(sessions[name].rows) == 3
        assert sessions[name].closed
    assert seen[-1] == (12, 12)


def test_a_number_of_steps_that_does_not_fit_the_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of rounds=2"):
        measure_in_turns({}, None, range(5), warmup=2, rounds=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="feed has 2"):
        measure_in_turns({}, None, range(2), warmup=2, rounds=1)  # type: ignore[arg-type]


def test_medians_and_quartiles_are_those_of_all_steps() -> None:
    some = samples((4.0, 1.0), (3.0, 2.0, 100.0))
    assert some.median_s == 3
    assert some.spread_s == (2, 4)
    assert some.round_medians_s == (2.5, 3)
    assert samples((7.0,)).spread_s == (7, 7)


def test_the_hidden_share_is_what_prefetching_wins_back() -> None:
    got = hiding(samples((1.0, 1.0), (1.0, 1.0)), samples((2.0, 2.0), (3.0, 3.0)), samples((1.0, 1.2), (2.0, 2.0)))
    assert got.rounds == pytest.approx((0.9, 0.5))
    assert got.share == pytest.approx((2.5 - 1.6) / 1.5)


def test_there_is_no_hidden_share_where_nothing_was_exposed() -> None:
    for sync_s in (1.9, 2.0, 2.09):
        assert hiding(samples((2.0,)), samples((sync_s,)), samples((1.0,))).share is None
    assert hiding(samples((2.0,)), samples((2.11,)), samples((2.0,))).share == pytest.approx(1)
