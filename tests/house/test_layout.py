"""Folders, links and names: the standard library stays whole, and people find the code at the top level."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.house.tree import LINKED, ROOT, pyproject, python_files, tracked_files

POINTS = [
    (group, name, value)
    for group, points in pyproject()["project"]["entry-points"].items()
    for name, value in points.items()
]


def run_python(*args: str) -> subprocess.CompletedProcess[str]:
    """Python started in the repository root, where the links are visible and come first on the path."""
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_from_the_root_selectors_is_the_standard_librarys() -> None:
    assert (ROOT / "selectors").exists(), "the link is gone: this test would prove nothing"
    done = run_python(
        "-c",
        "import sys; assert '' in sys.path or sys.path[0]\n"
        "import selectors, subprocess, asyncio, socketserver, sysconfig\n"
        "assert selectors.__file__.startswith(sysconfig.get_path('stdlib')), selectors.__file__\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "print(selectors.DefaultSelector.__module__)",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "selectors"


def test_from_the_root_asyncio_starts_as_a_module_run_with_dash_m() -> None:
    done = run_python("-m", "timeit", "-n1", "-r1", "import asyncio, selectors; selectors.DefaultSelector().close()")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", LINKED)
def test_the_root_shows_the_folder_through_a_relative_link(folder: str) -> None:
    done = subprocess.run(
        ["git", "ls-files", "-s", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("120000 "), f"{folder} is not a symbolic link in the index: {done.stdout!r}"
    # A checkout without symbolic links holds the target as text.
    link = ROOT / folder
    target = str(link.readlink()) if link.is_symlink() else link.read_text()
    assert target == f"sparda_core/{folder}"


@pytest.mark.parametrize("folder", LINKED)
def test_the_linked_folders_hold_no_init_file(folder: str) -> None:
    found = list((ROOT / "sparda_core" / folder).rglob("__init__.py"))
    assert not found, f"{found} would make `import {folder}` from the root win over another module of that name"


def test_no_file_is_called_random() -> None:
    assert not [path for path in python_files() if path.name == "random.py"]


@pytest.mark.parametrize("folder", LINKED)
def test_the_linked_folders_hold_code(folder: str) -> None:
    assert [path for path in python_files("sparda_core") if path.parts[1] == folder]


@pytest.mark.parametrize(("group", "name", "value"), POINTS, ids=[f"{group}:{name}" for group, name, _ in POINTS])
def test_every_registered_method_can_be_imported(group: str, name: str, value: str) -> None:
    module, _, factory = value.partition(":")
    made = getattr(importlib.import_module(module), factory)
    assert made.name == name, f"{group}: {value} calls itself {made.name!r}"


def test_the_command_can_be_imported() -> None:
    module, _, function = pyproject()["project"]["scripts"]["sparda"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_results_of_runs_are_not_tracked() -> None:
    assert not [path for path in tracked_files() if path.parts[0] in ("results", "dist", "build")]
