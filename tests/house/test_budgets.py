"""Budgets that keep the code readable, checked on every file; a failure lists every place."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import ROOT, python_files, syntax

MOST_FILE_LINES = 600
MEDIAN_FILE_LINES = 150
MOST_FUNCTION_LINES = 80

PACKAGE = python_files("sparda_core")
TESTED = python_files("sparda_core", "tests")
EVERYTHING = python_files()
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(syntax(path)) if isinstance(node, Function))


def line_count(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_kernel(function: Function) -> bool:
    """A Triton kernel returns nothing and its parameters are its grid's: the language takes no annotations."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def only_passes(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )


def prints(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def raises_not_implemented(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.unparse(node.exc)


def none_of(wrong: Iterator[str]) -> None:
    """Fail with every entry of `wrong`, if there is one."""
    found = list(wrong)
    assert not found, "\n".join(found)


def test_no_file_is_too_long() -> None:
    none_of(f"{path}: {line_count(path)} lines" for path in EVERYTHING if line_count(path) > MOST_FILE_LINES)


def test_the_median_file_is_short() -> None:
    assert statistics.median(line_count(path) for path in PACKAGE) <= MEDIAN_FILE_LINES


def test_no_function_outside_kernels_is_too_long() -> None:
    none_of(
        f"{path}:{function.lineno} {function.name} has {length(function)} lines"
        for path in PACKAGE
        if "kernels" not in path.parts
        for function in functions(path)
        if length(function) > MOST_FUNCTION_LINES
    )


def test_every_function_states_what_it_returns() -> None:
    none_of(
        f"{path}:{function.lineno} {function.name}"
        for path in TESTED
        for function in functions(path)
        if function.returns is None and not is_kernel(function)
    )


def test_the_package_prints_nothing() -> None:
    none_of(f"{path}: {ast.unparse(node)}" for path in PACKAGE for node in ast.walk(syntax(path)) if prints(node))


def test_no_handler_only_passes() -> None:
    none_of(
        f"{path}:{node.lineno}"
        for path in EVERYTHING
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ExceptHandler) and only_passes(node)
    )


def test_every_file_of_the_package_says_what_it_is() -> None:
    none_of(f"{path} has no docstring" for path in PACKAGE if not ast.get_docstring(syntax(path)))


def test_nothing_is_left_for_later() -> None:
    none_of(
        f"{path}:{number} {line.strip()}"
        for path in PACKAGE
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1)
        if UNFINISHED.search(line)
    )
    none_of(str(path) for path in PACKAGE for node in ast.walk(syntax(path)) if raises_not_implemented(node))


def test_the_checks_notice_what_they_look_for() -> None:
    tree = ast.parse(
        "try:\n    print(1)\nexcept OSError:\n    ...\n"
        "@triton.jit\ndef kernel(x):\n    pass\n"
        "def later():\n    raise NotImplementedError\n"
    )
    nodes = list(ast.walk(tree))
    kernel, later = (node for node in nodes if isinstance(node, ast.FunctionDef))
    assert any(isinstance(node, ast.ExceptHandler) and only_passes(node) for node in nodes)
    assert sum(map(prints, nodes)) == 1
    assert sum(map(raises_not_implemented, nodes)) == 1
    assert is_kernel(kernel)
    assert not is_kernel(later)
    assert length(later) == 2
    assert UNFINISHED.search("# " + "TO" + "DO: later")
