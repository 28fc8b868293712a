"""The list of mutants: read, checked against the tree, applied to a copy of it."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError

ROOT = Path(__file__).parents[2]
LIST = Path("tests/mutants/mutants.toml")
#: What a test may need, copied for every worker.
_COPIED = ("sparda_core", "tests", "benchmarks", "examples", "docs")
_FILES = ("pyproject.toml", "README.md", "Makefile", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")


def _as_tuple(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names)


@attrs.frozen(kw_only=True)
class Mutant:
    """A named bug.

    was, now  the text that it replaces, and by what
    tests     as pytest names them; any of them must fail
    limit_s   where its tests do not end: after how many seconds they are stopped
    """

    name: str
    bug: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...] = attrs.field(converter=_as_tuple)
    limit_s: float | None = None

    def applied(self, root: Path) -> str:
        """The file with the bug in it; raises ConfigError where the text does not stand there exactly once."""
        path = root / self.file
        if not path.is_file():
            raise ConfigError(f"mutant {self.name!r}: {self.file} is not there any more; bring the mutant up to date")
        text = path.read_text(encoding="utf-8")
        found = text.count(self.was)
        if found != 1:
            raise ConfigError(
                f"mutant {self.name!r} is stale: its text stands {found} times in {self.file}, not once; "
                "bring `was` up to date"
            )
        return text.replace(self.was, self.now)

    def check_tests(self, root: Path) -> None:
        """Raise ConfigError where a test named is not there: pytest would call that a failure."""
        for test in self.tests:
            file, _, name = test.partition("[")[0].partition("::")
            path = root / file
            if not path.is_file() or (name and f"def {name}(" not in path.read_text(encoding="utf-8")):
                raise ConfigError(f"mutant {self.name!r}: test {test} is not there; name one that is")

    def digest(self, root: Path) -> str:
        """Changes with whatever may change the outcome: the mutant, its file, the files of its tests."""
        files = (self.file, *(test.partition("::")[0] for test in self.tests))
        told = (self.name, self.bug, self.file, self.was, self.now, self.tests)
        parts = [repr(told), *((root / file).read_text(encoding="utf-8") for file in files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_mutants(path: Path) -> tuple[Mutant, ...]:
    """The list, in order; raises ConfigError where an entry is malformed or a name comes twice."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    try:
        found = tuple(Mutant(**entry) for entry in entries)
    except TypeError as wrong:
        raise ConfigError(f"{path}: an entry needs name, bug, file, was, now and tests, no more: {wrong}") from wrong
    names = [mutant.name for mutant in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: {', '.join(twice)} is there twice; names are unique")
    return found


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> tuple[Mutant, ...]:
    """Those named, or all; raises ConfigError for a name that is not there."""
    unknown = sorted(set(names) - {mutant.name for mutant in mutants})
    if unknown:
        raise ConfigError(f"no mutant is called {', '.join(unknown)}; names are in {LIST}")
    return tuple(mutant for mutant in mutants if not names or mutant.name in names)


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """What tests run from, with the times of its files, by which compiled kernels are found again."""
    for name in _COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, symlinks=True)
    for name in _FILES:
        if (root / name).is_file():
            shutil.copy2(root / name, target / name)
