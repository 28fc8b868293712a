"""Budgets that keep the code readable, checked on every file."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import ROOT, python_files, syntax

MOST_FILE_LINES = 600
MEDIAN_FILE_LINES = 150
MOST_FUNCTION_LINES = 80

PACKAGE = python_files("sparda_core")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(syntax(path)) if isinstance(node, Function))


def line_count(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


def is_kernel(function: Function) -> bool:
    """A Triton kernel returns nothing and its parameters are its grid's: the language takes no annotations."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def only_passes(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_no_file_is_too_long(path: Path) -> None:
    assert line_count(path) <= MOST_FILE_LINES


def test_the_median_file_is_short() -> None:
    assert statistics.median(line_count(path) for path in PACKAGE) <= MEDIAN_FILE_LINES


@pytest.mark.parametrize("path", PACKAGE, ids=str)
def test_no_function_is_too_long(path: Path) -> None:
    if "kernels" in path.parts:
        return
    wrong = [
        f"{path}:{function.lineno} {function.name} has {function.end_lineno - function.lineno + 1} lines"
        for function in functions(path)
        if function.end_lineno is not None and function.end_lineno - function.lineno >= MOST_FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", python_files("sparda_core", "tests"), ids=str)
def test_every_function_states_what_it_returns(path: Path) -> None:
    wrong = [
        f"{path}:{function.lineno} {function.name}"
        for function in functions(path)
        if function.returns is None and not is_kernel(function)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PACKAGE, ids=str)
def test_the_package_prints_nothing(path: Path) -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_no_handler_only_passes(path: Path) -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ExceptHandler) and only_passes(node)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PACKAGE, ids=str)
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(syntax(path)), f"{path} has no docstring"


@pytest.mark.parametrize("path", PACKAGE, ids=str)
def test_nothing_is_left_for_later(path: Path) -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    wrong = [
        f"{path}:{number} {line.strip()}"
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1)
        if any(mark in line for mark in marks)
    ]
    wrong += [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.unparse(node.exc)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_checks_notice_what_they_look_for() -> None:
    tree = ast.parse("try:\n    f()\nexcept OSError:\n    ...\n@triton.jit\ndef kernel(x): pass\n")
    handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    kernel = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert only_passes(handler)
    assert is_kernel(kernel)
