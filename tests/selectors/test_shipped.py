"""The recordings that ship: small, documented, playable by name, and fitted by the localities that ship with them."""

from __future__ import annotations

import hashlib
import re

import pytest

from sparda_core.selectors.recording import load
from sparda_core.selectors.replay import Replay
from sparda_core.selectors.shipped import path_of, recording_names
from sparda_core.shapes import named_shape
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.locality_fit import fit_locality, miss_shares
from sparda_core.simulator.trace_facts import recorded_facts

NAMES = recording_names()
#: Localities that ship as fits of recordings.
FITTED = {
    "smollm2-forecast": "smollm2/forecast-16", "smollm2-infinigen": "smollm2/infinigen-16",
    "smollm2-query": "smollm2/query-16",
}  # fmt: skip
#: How far the misses of a fit may lie from its recording's, as a share of selected blocks. A fit knows one churn; the
#: half that is counted has another than the whole, by as much.
OFF = 0.006


def test_there_are_three_selectors_under_two_cuts_in_less_than_two_megabytes() -> None:
    wanted = {f"smollm2/{selector}-{budget}" for selector in ("forecast", "infinigen", "query") for budget in (8, 16)}
    assert set(NAMES) == wanted
    assert sum(path_of(name).stat().st_size for name in NAMES) < 2e6


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_recording_says_how_it_was_made_of_what_and_under_which_licence(name: str) -> None:
    one = load(name)
    selector, budget = re.fullmatch(r"smollm2/(\w+)-(\d+)", name).groups()  # type: ignore[union-attr]
    assert (one.model, one.selector, one.spec.budget) == ("smollm2-135m", selector, int(budget))
    assert one.steps >= 150
    assert one.rows == 3
    assert one.notes["command"].startswith(f"sparda record --selector {selector} ")
    assert f"--budget {budget} " in one.notes["command"]
    assert len(re.findall(r"sha256 [0-9a-f]{64}", one.notes["texts"])) == 3
    assert "no text" in one.notes["licence"]
    assert one.scored is not None
    small, plain = (recorded_facts(one, policy=policy) for policy in ("score", "last-selection"))
    assert small == plain


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_reproduces_the_misses_of_its_recording_in_every_pool(name: str) -> None:
    one = load(name)
    fit = fit_locality(one, name="fit", file=name, sha256="0" * 64)
    told = miss_shares(one, fit)
    assert {share.slots // one.spec.budget for share in told} == {1, 2, 4}
    for share in told:
        assert share.model == pytest.approx(share.recording, abs=OFF), share


@pytest.mark.parametrize("locality", FITTED)
def test_a_shipped_locality_is_the_fit_of_a_shipped_recording(locality: str) -> None:
    name = FITTED[locality]
    kept = load_locality(locality)
    digest = hashlib.sha256(path_of(name).read_bytes()).hexdigest()
    again = fit_locality(load(name), name=locality, file=f"{name}.npz", sha256=digest)
    assert (kept.churn, kept.reuse, kept.tail, kept.fitted) == (again.churn, again.reuse, again.tail, again.fitted)


def test_a_shipped_recording_is_replayed_by_name() -> None:
    one = load(NAMES[0])
    Replay(path=NAMES[0]).bind(shape=named_shape("smollm2-135m"), spec=one.spec)
