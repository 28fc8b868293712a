"""Every registered selector, in all its forms, keeps every law of selectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparda_core.registry import SELECTORS
from sparda_core.testing import SELECTOR_LAWS, Verdict, check_selector
from tests.profiles import share
from tests.testing.methods import EXEMPT, FORMS, REFERENCES, given, replay_of

LISTED = ("dense", "window", "replay")
#: Laws that wait for something to be given.
ASKED = {"brute-force", "device"}


def judged(verdict: Verdict, label: str) -> None:
    """Every law was held, or waived for a reason that this table knows."""
    waived = ASKED | EXEMPT.get(label, {}).keys()
    if label in LISTED:
        waived |= {"lower-id", "nan-ranks-last"}
    assert set(verdict.held) | set(verdict.waived) == {law.name for law in SELECTOR_LAWS}
    assert set(verdict.waived) <= waived, verdict.waived


def test_every_registered_selector_has_a_form() -> None:
    assert {name for name, _ in FORMS.values()} | {"replay"} == set(SELECTORS.names())


@pytest.mark.parametrize("label", FORMS)
def test_a_selector_keeps_every_law(label: str) -> None:
    verdict = check_selector(given(label), reference=REFERENCES.get(label), examples=share(4))
    judged(verdict, label)
    assert ("brute-force" in verdict.held) == (label in REFERENCES)


def test_a_recording_that_is_played_keeps_every_law_of_one_text(tmp_path: Path) -> None:
    judged(check_selector(replay_of(tmp_path), exempt=EXEMPT["replay"], examples=share(3)), "replay")


@pytest.mark.gpu
@pytest.mark.parametrize("label", [label for label in FORMS if label != "oracle"])
def test_a_selector_chooses_on_a_gpu_what_it_chooses_on_a_cpu(label: str) -> None:
    # Every scene has a cut of its own, for which every kernel is compiled.
    verdict = check_selector(given(label), laws=["device"], device="cuda", examples=share(3))
    assert verdict.held == ("device",)
