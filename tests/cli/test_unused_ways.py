"""Commands that can be used in several ways refuse the options of another way, and take every one of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.cli import bench, calibrate, evaluate, profile, texts, validate
from sparda_core.cli.parser import Parser
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import ConfigError
from tests.cli.conftest import Refusal


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("validate", "--device", "cpu", "--only", "b16"), "--only does nothing with --device cpu"),
        (("validate", "--device", "cpu", "--timelines", "x"), "--timelines does nothing with --device cpu"),
        (("validate", "--device", "cpu", "--list"), "--device does nothing with --list"),
        (("validate", "--threads", "2"), "--threads does nothing with --device cuda"),
        (("validate", "--published", "--rounds", "2"), "--rounds does nothing with --published"),
        (("validate", "--report", "run", "--only", "b16"), "--only does nothing with --report"),
        (("validate", "--draw", "3", "--out", "a.json", "--most", "4"), "--most does nothing with --draw"),
        (("validate", "--predict-only", "--measure-only"), "--measure-only does nothing with --predict-only"),
        (("validate", "--measure-only", "--profile", "h200"), "--profile does nothing with --measure-only"),
        (("validate", "--churn", "0.2"), "--churn does nothing with --device cuda"),
        (("calibrate", "--locality", "smollm2/query-8", "--steps", "3"), "--steps does nothing with --locality"),
        (("calibrate", "--locality", "smollm2/query-8", "--device", "cuda"), "--device does nothing with --locality"),
        (("calibrate", "--device", "cuda", "--contexts", "64"), "--contexts does nothing with --device cuda"),
        (("profile", "list", "--like", "l40s"), "--like does nothing with profile list"),
        (("profile", "show", "h200", "--like", "l40s"), "--like does nothing with profile show"),
        (("texts", "show", "--any-version"), "--any-version does nothing with texts show"),
        (("texts", "packages", "--out", "a"), "--out does nothing with texts packages"),
        (("bench", "decode", "--list", "--seed", "3"), "--seed does nothing with --list"),
        (("bench", "decode", "--show", "a.json", "--most", "3"), "--most does nothing with --show"),
        (("evaluate", "--show", "a", "--budgets", "8"), "--budgets does nothing with --show"),
        (("evaluate", "--show", "a", "--share", "2/4"), "--share does nothing with --show"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_an_option_of_another_way_is_refused(words: tuple[str, ...], told: str, refusal: Refusal) -> None:
    assert f"{told}; leave it out" in refusal(*words)


@pytest.mark.parametrize("command", [bench, calibrate, evaluate, profile, texts, validate], ids=lambda c: c.__name__)
def test_defaults_count_as_not_given(command: object) -> None:
    parser = Parser(prog="", description="")
    command.add_arguments(parser)  # type: ignore[attr-defined]
    positional = {"profile": ["list"], "texts": ["show"], "bench": ["decode"]}
    args = parser.parse(positional.get(str(command.__name__).rpartition(".")[2], []))  # type: ignore[attr-defined]
    refuse_unused(args, command.add_arguments, (), where="nothing")  # type: ignore[attr-defined]


def test_every_option_of_validate_is_of_some_way_and_none_is_made_up() -> None:
    parser = Parser(prog="", description="")
    validate.add_arguments(parser)
    declared = {action.dest for action in parser.options} - {"json"}
    assert {name for names in validate.USED.values() for name in names} == declared


def test_an_option_that_is_used_may_say_anything() -> None:
    parser = Parser(prog="", description="")
    parser.add_argument("--out", type=Path, default=Path("a"))
    args = parser.parse(["--out", "b"])

    def declare(other: Parser) -> None:
        other.add_argument("--out", type=Path, default=Path("a"))

    refuse_unused(args, declare, ("out",), where="it")
    with pytest.raises(ConfigError, match="--out does nothing with it"):
        refuse_unused(args, declare, (), where="it")
