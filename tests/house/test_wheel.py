"""The wheel holds everything and works alone: built from a clean copy, installed into a fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

import sparda_core
from tests.house.tree import LINKED, ROOT, module_name, pyproject, tracked_files

pytestmark = pytest.mark.slow


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Where this checkout lies on the caller's path, the wheel would be tested against itself.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(args, cwd=cwd, capture_output=True, text=True, check=False, timeout=300, env=env)


def build(copy: Path, *, links: bool) -> Path:
    """Build from the tracked files alone; without `links`, as a checkout that cannot hold symbolic links."""
    for path in tracked_files():
        source, target = ROOT / path, copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and not links:
            target.write_text(str(source.readlink()))
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("copy"), links=True)


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that holds the wheel, and sees this one's other packages behind it."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).stdout.strip()
    done = run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=home
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A folder named in a .pth file is searched last, and its own .pth files (an editable install) are not read.
    Path(site, "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    tracked = {path.as_posix() for path in tracked_files() if path.parts[0] == "sparda_core"}
    held = {name for name in contents(wheel) if ".dist-info/" not in name}
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, found in pyproject()["tool"]["setuptools"]["package-data"].items()
        for pattern in found
    ]
    shipped = {name for name in tracked if name.endswith(".py") or any(fnmatch(name, p) for p in patterns)}
    assert held == shipped
    left_out = tracked - shipped
    assert not left_out, f"no package-data pattern ships {sorted(left_out)}"


@pytest.mark.parametrize("folder", LINKED)
def test_the_wheel_holds_the_linked_folder_once(wheel: Path, folder: str) -> None:
    names = contents(wheel)
    assert any(name.startswith(f"sparda_core/{folder}/") for name in names)
    assert not any(name.startswith(f"{folder}/") for name in names)


def test_a_checkout_without_symbolic_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert contents(build(tmp_path, links=False)) == contents(wheel)


def test_every_module_imports_from_the_wheel_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    names = sorted(
        module_name(path)
        for path in tracked_files()
        if path.parts[0] == "sparda_core" and path.suffix == ".py" and path.name != "gpu.py"
    )
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    path = importlib.import_module(name).__file__\n"
        "    assert path.startswith(sys.prefix), f'{name} came from {path}'\n"
    )
    done = run(str(clean_python), "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_installed_command_and_entry_points_are_the_projects(clean_python: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import entry_points, version\n"
        "print(version('sparda'))\n"
        "for group in ('sparda.selectors', 'sparda.runtimes'):\n"
        "    print(group, *sorted(point.name for point in entry_points(group=group)))\n"
    )
    done = run(str(clean_python), "-c", code, cwd=tmp_path)
    points = pyproject()["project"]["entry-points"]
    want = [f"{group} {' '.join(sorted(points[group]))}" for group in ("sparda.selectors", "sparda.runtimes")]
    assert done.stdout.splitlines() == [sparda_core.__version__, *want], done.stderr
    shown = run(str(clean_python.parent / "sparda"), "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
