"""Names to methods: entry points, in-process additions, and helpful refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.resident import Resident


class Mine(Resident):
    """A third party's runtime."""


def _makes_text() -> Any:
    return "no runtime"


@pytest.fixture
def mine() -> Iterator[str]:
    RUNTIMES.register("mine", Mine)
    yield "mine"
    RUNTIMES.unregister("mine")


def test_the_built_in_methods_come_through_entry_points() -> None:
    assert set(SELECTORS.names()) >= {
        "dense", "query", "infinigen", "forecast", "nosa", "nosa-forecast", "oracle", "random", "window", "replay",
    }  # fmt: skip
    assert set(RUNTIMES.names()) >= {"resident", "offload-sync", "offload-prefetch"}


@pytest.mark.parametrize("registry", [SELECTORS, RUNTIMES])
def test_every_factory_can_be_imported(registry: object) -> None:
    for name in registry.names():  # type: ignore[attr-defined]
        assert callable(registry.factory(name))  # type: ignore[attr-defined]


def test_an_unknown_name_answers_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'forecast'") as unknown:
        SELECTORS.make("forcast")
    assert "query" in unknown.value.known


def test_an_addition_is_found_and_can_be_taken_back(mine: str) -> None:
    assert isinstance(RUNTIMES.make(mine), Mine)
    RUNTIMES.unregister(mine)
    with pytest.raises(UnknownNameError):
        RUNTIMES.make(mine)


def test_a_taken_name_is_refused(mine: str) -> None:
    with pytest.raises(ConfigError, match="'mine' is already registered"):
        RUNTIMES.register(mine, Resident)
    with pytest.raises(ConfigError, match="'resident' is already registered"):
        RUNTIMES.register("resident", Mine)


def test_an_option_that_the_factory_does_not_take_is_named_with_those_it_does() -> None:
    with pytest.raises(ConfigError, match=r"runtime='resident': .*fast.*its options: .*slots"):
        RUNTIMES.make("resident", fast=True)


def test_a_factory_must_make_the_right_thing() -> None:
    RUNTIMES.register("wrong", _makes_text)
    try:
        with pytest.raises(ConfigError, match="made a str, not a Runtime"):
            RUNTIMES.make("wrong")
    finally:
        RUNTIMES.unregister("wrong")


def _plug_in(folder: Path, name: str, value: str, code: str) -> None:
    """Install a distribution with one selector, the way pip would."""
    info = folder / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sparda.selectors]\n{name} = {value}\n")
    (folder / f"{value.partition(':')[0]}.py").write_text(code)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise RuntimeError('it is broken')", "cannot be imported: RuntimeError: it is broken"),
        ("def (", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("import absent_module", "cannot be imported: No module named 'absent_module'"),
        ("X = 5", "is no class or function: 5"),
        ("def X(): raise ValueError('boom')", "cannot be made: ValueError: boom"),
        ("def X(): return 7", "made a int, not a Selector"),
    ],
)
def test_a_plug_in_that_fails_in_any_way_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    module = f"broken_{abs(hash(code))}"
    _plug_in(tmp_path, "broken", f"{module}:X", code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says):
        SELECTORS.make("broken")
    monkeypatch.delitem(sys.modules, module, raising=False)


def test_an_option_may_have_any_name() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'name'"):
        SELECTORS.make("query", name="other")
