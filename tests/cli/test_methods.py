from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparda_core.cli.main import main
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.selector import Selector
from tests.cli.stubs import Early, Late

Captured = pytest.CaptureFixture[str]


def needs_options(*, path: str) -> Early:
    raise AssertionError(path)


@pytest.fixture(autouse=True)
def _stub_selectors() -> Iterator[None]:
    stubs: dict[str, Callable[..., Selector]] = {"test-early": Early, "test-late": Late, "test-options": needs_options}
    for name, factory in stubs.items():
        SELECTORS.register(name, factory)
    yield
    for name in stubs:
        SELECTORS.unregister(name)


def document(capsys: Captured, *argv: str) -> Any:
    assert main(["methods", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_registered_name_is_listed_once(capsys: Captured) -> None:
    got = document(capsys)
    assert [item["name"] for item in got["selectors"]] == list(SELECTORS.names())
    assert [item["name"] for item in got["runtimes"]] == list(RUNTIMES.names())
    assert len(got["pairs"]) == len(SELECTORS.names()) * len(RUNTIMES.names())


def test_leads_and_needs_are_those_of_the_declarations(capsys: Captured) -> None:
    by_name = {item["name"]: item for item in document(capsys)["selectors"]}
    assert (by_name["test-early"]["lead"], by_name["test-late"]["lead"]) == (1, 0)
    assert by_name["test-early"]["needs"] == []


def test_a_selector_without_lead_fits_everything_but_prefetching(capsys: Captured) -> None:
    pairs = {(p["selector"], p["runtime"]): p for p in document(capsys)["pairs"]}
    assert pairs["test-late", "offload-sync"]["fits"] == "yes"
    assert pairs["test-late", "offload-prefetch"]["fits"] == "no"
    assert "nearest workable choice" in str(pairs["test-late", "offload-prefetch"]["reason"])
    assert all(pairs["test-early", runtime]["fits"] == "yes" for runtime in RUNTIMES.names())


def test_a_method_that_needs_options_is_listed_with_what_it_needs(capsys: Captured) -> None:
    got = document(capsys)
    (one,) = [item for item in got["selectors"] if item["name"] == "test-options"]
    assert "'path'" in str(one["about"])
    assert {pair["fits"] for pair in got["pairs"] if pair["selector"] == "test-options"} == {"?"}


def test_tables_show_every_pair_and_the_reason_of_each_refusal(capsys: Captured) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    for name in (*SELECTORS.names(), *RUNTIMES.names(), "Why not"):
        assert name in out


def test_the_budget_decides_what_fits(capsys: Captured) -> None:
    got = document(capsys, "--budget", "24", "--local", "20")
    assert got["spec"]["budget"] == 24


def test_a_method_that_wants_options_says_what_it_is_too_and_every_line_is_a_sentence(capsys: Captured) -> None:
    about = {item["name"]: str(item["about"]) for item in document(capsys)["selectors"]}
    assert about["replay"].startswith("Plays a recording")
    assert "Not made without options: selector='replay': missing a required argument: 'path'" in about["replay"]
    assert [name for name, text in about.items() if text.endswith(":")] == []
