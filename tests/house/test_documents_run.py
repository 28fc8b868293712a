"""What the documents show is run as a reader would run it, and does what the page says."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparda_core.plan import Kind
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.shapes import BlockSpec, named_shape
from tests.house.tree import ROOT

SHAPE = named_shape("smollm2-135m")
SPEC = BlockSpec(budget=8)
README_COMMANDS = re.findall(r"^\| `sparda ([a-z]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
#: Every command line that a page shows in a block of its own.
SHOWN = sorted({
    line
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    if language in ("", "sh")
    for line in re.findall(r"^sparda (.*)$", block, re.MULTILINE)
})  # fmt: skip
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path that holds the page's blocks, each under the file name in its first line."""
    text = (ROOT / "docs" / "extending.md").read_text()
    blocks = PYTHON_BLOCK.findall(text)
    names = []
    for block in blocks:
        titled = re.match(r"# (\w+)\.py", block)
        names.append(titled.group(1) if titled else "register_both")
        (tmp_path / f"{names[-1]}.py").write_text(block)
    assert names == ["every_nth", "every_nth_tensors", "polite", "register_both", "judge_both"]
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    SELECTORS.unregister("every-nth")
    RUNTIMES.unregister("polite")
    for name in names:
        sys.modules.pop(name, None)


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_the_selector_of_the_page_declares_itself_and_binds(page: Path) -> None:
    selector = load("every_nth").EveryNth(n=3)
    bound = selector.bind(shape=SHAPE, spec=SPEC)
    assert type(bound).__name__ == "BoundEveryNth"


def test_the_runtime_of_the_page_copies_only_after_attention(page: Path) -> None:
    plan = load("polite").Polite().decode_plan(shape=SHAPE, spec=SPEC, selector=load("every_nth").EveryNth())
    fetches = [op for op in plan if op.kind == Kind.FETCH]
    assert plan.runtime == "polite"
    assert len(fetches) == SHAPE.layers - 1
    assert all(f"{Kind.ATTEND}/{op.source}" in op.after for op in fetches)


def test_the_registry_of_the_page_makes_both(page: Path) -> None:
    module = load("register_both")
    assert module.selector.n == 3
    assert {"every-nth"} <= set(SELECTORS.names())
    assert RUNTIMES.make("polite").name == "polite"


def test_both_methods_of_the_page_keep_the_laws(page: Path) -> None:
    judged = load("judge_both")
    assert {"chunks", "lower-id", "dense-when-all-fits"} <= set(judged.kept)
    assert {"same-answer", "victims"} <= set(judged.served)


def test_the_blocks_of_the_page_on_testing_run() -> None:
    for block in PYTHON_BLOCK.findall((ROOT / "docs" / "testing.md").read_text()):
        names: dict[str, Any] = {}
        exec(compile(block, "docs/testing.md", "exec"), names)  # noqa: S102 -- our own page
        for name, made in names.items():
            if name.startswith("test_one"):  # the others draw as many examples as a profile says
                made()


@pytest.mark.model
def test_the_three_lines_of_the_readme_make_a_combination() -> None:
    (block,) = PYTHON_BLOCK.findall((ROOT / "README.md").read_text())
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 -- our own page
    assert [op.kind for op in names["combination"].plan()][-1] == Kind.HEAD


@pytest.mark.parametrize("command", README_COMMANDS)
def test_every_command_of_the_readme_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sparda_core.cli.main import main

    try:
        code: object = main([command, "--help"])
    except SystemExit as stop:  # how argparse ends after its help
        code = stop.code
    assert code in (0, None)
    assert f"sparda {command}" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_a_page_lists_every_command(page: str) -> None:
    from sparda_core.cli.main import COMMANDS

    listed = re.findall(r"^\| `(?:sparda )?([a-z]+)` \|", (ROOT / page).read_text(), re.MULTILINE)
    assert set(listed) >= set(COMMANDS)


def test_the_predicted_steps_of_the_readme_are_what_predict_says() -> None:
    from sparda_core.whatif.scenario import Scenario

    table = r"^  \|( `dense` resident .*)\|\n  \|[ -|]+\n  \|(.* ms )\|$"
    ((names, times),) = re.findall(table, (ROOT / "README.md").read_text(), re.MULTILINE)
    for name, shown in zip(names.split("|"), times.split("|"), strict=True):
        selector, runtime = re.findall(r"[a-z-]+", name)
        step_s = Scenario(selector=selector, runtime=runtime, batch=16, churn=0.1).predict().step_s
        assert f"{1e3 * step_s:.1f} ms" == shown.strip(), name


def test_pages_show_every_command() -> None:
    assert {line.split()[0] for line in SHOWN} >= set(README_COMMANDS)


@pytest.mark.parametrize("line", SHOWN)
def test_every_command_line_that_a_page_shows_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparda_core.cli import main as front

    words = shlex.split(line, comments=True)
    command = importlib.import_module(f"sparda_core.cli.{front.COMMANDS[words[0]][0]}")
    monkeypatch.setattr(command, "run", lambda args: 0)
    assert front.main(words) == 0
