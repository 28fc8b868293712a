"""A recording in place of a locality: what a prediction makes of it, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sparda_core.cli.main import main
from sparda_core.errors import ConfigError, RecordingError, UnknownNameError
from sparda_core.selectors.recording import load
from sparda_core.selectors.shipped import path_of
from sparda_core.simulator.trace_facts import recorded_facts
from sparda_core.whatif.explain import values_now
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import identity_of

NAME = "smollm2/forecast-16"
BASE = Scenario(batch=8, context=131072, recording=NAME)
POOLS: tuple[tuple[str, float], ...] = (
    ("last-selection", 1.0), ("lru", 2.0), ("lru", 4.0), ("score", 2.0), ("score", 4.0)
)  # fmt: skip


def recorded_share(policy: str, times: float, first_layer: int = 0) -> float:
    recording = load(NAME)
    slots = round(times * recording.spec.budget)
    facts = recorded_facts(recording, slots=slots, policy=policy, skip=recording.steps // 2)
    misses, selected = (sum(getattr(one, name)[first_layer:].sum() for one in facts) for name in ("misses", "selected"))
    return float(misses / selected)


@pytest.mark.parametrize(("policy", "times"), POOLS)
def test_a_step_misses_the_share_that_the_recording_misses(policy: str, times: float) -> None:
    got = BASE.turned(policy=policy, slot_factor=times, batch=9, shape="smollm2-135m").predict()
    # The first layer is resident; rows and KV heads are multiples of those recorded, layers are as many.
    selected = 29 * 9 * 3 * 96
    assert got.misses == pytest.approx(selected * recorded_share(policy, times, first_layer=1), abs=2)
    wide = BASE.turned(policy=policy, slot_factor=times).predict()
    wanted = recorded_share(policy, times, first_layer=1)
    assert wide.misses / (31 * 8 * 2 * 96) == pytest.approx(wanted, rel=0.08), "two layers weigh double"
    assert "recording smollm2/forecast-16" in got.provenance["locality"]


def test_recorded_misses_fall_with_slots_and_one_selection_is_churn() -> None:
    shares = [recorded_share(policy, times) for policy, times in POOLS[:3]]
    assert shares[0] > 3 * shares[1] > 3 * shares[2] > 0
    assert BASE.churn_share() == BASE.turned(policy="lru", slot_factor=4.0).churn_share() == pytest.approx(shares[0])


def test_steps_of_a_recording_differ_as_its_own_do() -> None:
    got = BASE.turned(steps=12).predict()
    assert len({int(facts.misses.sum()) for facts in got.facts}) > 6


@pytest.mark.parametrize(
    ("knobs", "kind", "says"),
    [
        ({"churn": 0.1}, ConfigError, "both say what a step misses"),
        ({"locality": "nosa"}, ConfigError, "both say what a step misses"),
        ({"recording": "smollm2/forecast-61"}, UnknownNameError, "did you mean 'smollm2/forecast-16'"),
        ({"recording": "none.npz"}, RecordingError, "cannot be read"),
        ({"policy": "score", "slot_factor": 3.0}, ConfigError, "were counted for 16, 32, 64 slots"),
    ],
)
def test_what_makes_no_sense_with_a_recording_is_refused(
    knobs: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        BASE.turned(**knobs).predict()


def test_a_grid_refuses_a_name_and_a_study_knows_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        Grid(base=BASE, axes={"recording": (NAME, "smollm2/forcast-16")})
    mine = tmp_path / "mine.npz"
    shutil.copy(path_of(NAME), mine)
    grids = (Grid(base=BASE.turned(recording=name), axes={"batch": (1,)}) for name in (NAME, str(mine)))
    named, own = map(identity_of, grids)
    assert named["digests"][NAME] == own["digests"][str(mine)] != "unreadable"


def test_slots_of_a_recording_are_explained_and_its_churn_is_not() -> None:
    assert "churn" not in values_now(BASE)
    assert "slots" in values_now(BASE.turned(policy="lru", slot_factor=2.0))
    assert "slots" not in values_now(BASE.turned(policy="score", slot_factor=2.0))


def test_the_commands_take_a_recording_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["predict", "--batch", "8", "--recording", NAME, "--policy", "lru", "--slot-factor", "2"]) == 0
    assert "recording smollm2/forecast-16, of which" in " ".join(capsys.readouterr().out.split())
    grid = ["policy=last-selection", "batch=1,2"]
    assert main(["whatif", "--recording", NAME, "--grid", *grid, "--jobs", "1"]) == 0
    few = ["--selectors", "forecast", "--runtimes", "offload-prefetch", "--engines", "uva", "--ctas", "2"]
    assert main(["advise", "--recording", NAME, "--batch", "4", *few]) == 0
    assert "Misses: recording smollm2/forecast-16, churn 0.14" in " ".join(capsys.readouterr().out.split())
    assert main(["calibrate", "--locality", NAME, "--out", str(tmp_path / "mine.toml")]) == 0
    assert "forecast-16.npz" in (tmp_path / "mine.toml").read_text()
