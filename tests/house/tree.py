"""The repository as data: its files, its modules, who imports whom. For the house tests only."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: Code folders that the root shows through links and that have no __init__.py.
LINKED = ("kernels", "runtimes", "selectors", "simulator")


class Import(NamedTuple):
    """One import: the module asked for, its line, whether it happens when the importer is loaded."""

    module: str
    line: int
    on_load: bool


@functools.cache
def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files of the project, relative to ROOT, links included: what git tracks or would track."""
    git = shutil.which("git")
    assert git is not None, "the house tests list files through git, which is not on PATH"
    done = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = sorted({name for name in done.stdout.split("\0") if name})
    return tuple(Path(name) for name in names if (ROOT / name).exists() or (ROOT / name).is_symlink())


@functools.cache
def python_files(*tops: str) -> tuple[Path, ...]:
    """Python files below the named top folders (all if none is named), relative to ROOT."""
    return tuple(path for path in tracked_files() if path.suffix == ".py" and (not tops or path.parts[0] in tops))


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name to path (relative to ROOT) of every module of sparda_core."""
    return {module_name(path): path for path in python_files("sparda_core")}


def module_name(path: Path) -> str:
    """Dotted name of a file below ROOT; a package's __init__.py names the package."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def syntax(path: Path) -> ast.Module:
    """Parsed source of a file given relative to ROOT."""
    return ast.parse((ROOT / path).read_text(), filename=str(path))


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file. `from a.b import c` counts as a.b.c where that is a module of ours, else as a.b."""
    return tuple(_walk(syntax(path), on_load=True))


def _walk(node: ast.AST, *, on_load: bool) -> list[Import]:
    found: list[Import] = []
    for child in ast.iter_child_nodes(node):
        late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            found += [Import(alias.name, child.lineno, on_load) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None, f"relative import at line {child.lineno}"
            found += [Import(_target(child.module, alias.name), child.lineno, on_load) for alias in child.names]
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            found += _walk(ast.Module(child.body, []), on_load=False)
            found += _walk(ast.Module(child.orelse, []), on_load=on_load)
        else:
            found += _walk(child, on_load=on_load and not late)
    return found


def _target(module: str, name: str) -> str:
    inner = Path(*module.split("."), name)
    whole = (ROOT / inner.with_suffix(".py")).is_file() or (ROOT / inner / "__init__.py").is_file()
    return f"{module}.{name}" if whole and module.startswith("sparda_core") else module


def loads(module: str) -> dict[str, tuple[str, ...]]:
    """Top-level names of foreign packages that loading `module` loads, each with the chain of our modules to it.

    Static: follows imports at module level through sparda_core.
    """
    reached: dict[str, tuple[str, ...]] = {}
    queue: list[tuple[str, tuple[str, ...]]] = [(module, (module,))]
    seen = {module}
    while queue:
        name, chain = queue.pop(0)
        path = modules().get(name)
        asked = [found.module for found in imports(path) if found.on_load] if path else []
        # Python loads a.b's packages, a among them, before a.b.
        for module_asked in (*asked, name.rpartition(".")[0]):
            if module_asked and module_asked.split(".")[0] != "sparda_core":
                reached.setdefault(module_asked.split(".")[0], chain)
            elif module_asked and module_asked not in seen:
                seen.add(module_asked)
                queue.append((module_asked, (*chain, module_asked)))
    return reached
