"""Ctrl-C at random moments of training, of a what-if study and of judging: what was done is kept, the rest follows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.distill.train import Habits, train
from sparda_core.evaluate.study.run import run_study
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import run_grid
from tests.chaos.cuts import chosen, cut_at, moments
from tests.chaos.full_disk import open_files
from tests.distill.toy import toy_config, toy_model, toy_stream
from tests.evaluate.test_study_run import rows_of, study, timeless
from tests.profiles import NIGHTLY

#: Moments that each run is cut at.
MOST = 2000 if NIGHTLY else 5
GRID = Grid(base=Scenario(context=4096), axes={"batch": (1, 2, 4), "runtime": ("resident", "offload-sync")})


def cut_short(work: Callable[[], Any], moment: int) -> bool:
    """Whether the work was cut; what Python swallows while it throws something away was not."""
    try:
        with cut_at(moment):
            work()
    except KeyboardInterrupt:
        return True
    return False


def test_a_training_goes_on_from_its_last_checkpoint_wherever_it_was_cut(tmp_path: Path) -> None:
    config, stream, model = toy_config(steps=4), toy_stream(), toy_model()
    whole = train(model.decoder, stream, config)

    def run(path: Path) -> Any:
        return train(model.decoder, stream, config, Habits(checkpoint=path, checkpoint_every=1, resume=True))

    held = open_files()
    found = moments(functools.partial(run, tmp_path / "first" / "run.checkpoint"))
    for moment in chosen(found, MOST, seed=1):
        path = tmp_path / str(moment) / "run.checkpoint"
        assert cut_short(functools.partial(run, path), moment) or path.exists(), found[moment]
        left = list(path.parent.iterdir()) if path.parent.exists() else []
        assert left in ([], [path]), f"cut at {found[moment]} left {left}"
        resumed = run(path)
        assert resumed.losses == whole.losses, f"cut at {found[moment]}"
        assert torch.equal(resumed.forecast.own, whole.forecast.own)
    assert open_files() == held


def test_a_what_if_study_ends_with_the_same_rows_wherever_it_was_cut(tmp_path: Path) -> None:
    def run(folder: Path, *, resume: bool = False) -> Any:
        return run_grid(GRID, folder=folder, resume=resume)

    run(tmp_path / "whole")
    want = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    found = moments(functools.partial(run, tmp_path / "counted"))
    held = open_files()
    for moment in chosen(found, MOST, seed=2):
        folder = tmp_path / str(moment)
        cut_short(functools.partial(run, folder), moment)
        run(folder, resume=True)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == want, f"cut at {found[moment]}"
    assert open_files() == held


def test_a_judging_ends_with_the_same_rows_wherever_it_was_cut(tmp_path: Path) -> None:
    def run(folder: Path) -> Any:
        return run_study(study(), rows_of(folder, study()))

    whole, _ = run(tmp_path / "whole")
    folder, cuts = tmp_path / "part", 0
    found = moments(functools.partial(run, tmp_path / "counted"))
    # Each run goes on from what the ones before have kept, so that late moments are of other work every time.
    for moment in chosen(found, MOST, seed=3):
        cuts += cut_short(functools.partial(run, folder), moment)
        assert not list(folder.rglob("*.part"))
    assert cuts, "all cuts came too late: the test shows nothing"
    rows, _ = run_study(study(), rows_of(folder, study()))
    assert timeless(rows) == timeless(whole)


@pytest.mark.parametrize("fault", ["checkpoint", "rows"])
def test_a_file_that_could_be_half_would_be_noticed(fault: str, tmp_path: Path) -> None:
    """The companion: what the tests above compare does differ where a file was cut."""
    path = tmp_path / "run.checkpoint"
    if fault == "checkpoint":
        train(toy_model().decoder, toy_stream(), toy_config(steps=2), Habits(checkpoint=path, checkpoint_every=1))
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(ValueError, match="cannot be read"):
            train(toy_model().decoder, toy_stream(), toy_config(steps=2), Habits(checkpoint=path, resume=True))
    else:
        run_grid(GRID, folder=tmp_path)
        journal = tmp_path / "rows.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([lines[0], lines[1][:-9] + b"\n", *lines[2:]]))
        with pytest.raises(ValueError, match="remove the line"):
            run_grid(GRID, folder=tmp_path, resume=True)
