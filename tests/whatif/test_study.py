from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.errors import ConfigError, RecordingError, UnknownNameError
from sparda_core.whatif.backends import open_pool, serial
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import Status, evaluate
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.store import Store
from sparda_core.whatif.study import CHUNK, identity_of, run_grid
from tests.whatif.fakes import prediction, usual

AXES = {"batch": tuple(range(1, 41)), "runtime": ("offload-sync", "offload-prefetch")}
GRID = Grid(axes=AXES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Predictions are made by formula; every scenario that one is asked for is noted."""
    seen: list[Scenario] = []

    def predict(scenario: Scenario) -> Any:
        seen.append(scenario)
        return usual(scenario)

    monkeypatch.setattr(Scenario, "predict", predict)
    return seen


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_point_is_a_time_a_shortage_or_a_reason(asked: list[Scenario]) -> None:
    study = run_grid(Grid(axes={"batch": (4, 64), "budget": (96, 97)}))
    assert [row.status for row in study.rows] == [
        Status.FITS, Status.IMPOSSIBLE, Status.NO_MEMORY, Status.IMPOSSIBLE
    ]  # fmt: skip
    fits, impossible, short, _ = study.rows
    assert fits.tokens_per_s == 300.0
    assert fits.exposed_share == pytest.approx(0.3)
    assert (short.step_s, short.short_of, short.need_bytes, short.have_bytes) == (None, "host", 200, 100)
    assert short.device_bytes == 1e9 + 64e8
    assert impossible.reason == "budget=97 is not liked here"
    assert impossible.device_bytes is None
    assert study.counts == {"fits": 1, "out-of-memory": 1, "impossible": 2}


def test_real_combinations_that_cannot_work_become_rows_with_the_reason() -> None:
    axes = {"selector": ("query", "forecast"), "runtime": ("offload-prefetch",)}
    study = run_grid(Grid(base=Scenario(batch=1, context=16384), axes=axes))
    assert [row.fits for row in study.rows] == [False, True]
    assert "nearest workable choice" in (study.rows[0].reason or "")


def test_an_error_of_every_point_is_raised_before_anything_is_written(asked: list[Scenario], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"every one of the grid's 2 points is impossible.*budget=97 is not liked"):
        run_grid(Grid(base=Scenario(budget=97), axes={"batch": (1, 2)}), folder=tmp_path / "out")
    assert files(tmp_path / "out") == {}


def test_an_error_of_a_single_point_is_raised_as_it_is(asked: list[Scenario]) -> None:
    with pytest.raises(ConfigError, match=r"^budget=97 is not liked here$"):
        run_grid(Grid(base=Scenario(budget=97), axes={"batch": (1,)}))


def test_a_defect_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario: Scenario) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Scenario, "predict", broken)
    with pytest.raises(ZeroDivisionError):
        run_grid(GRID)


def test_a_time_that_is_no_number_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "predict", lambda _: prediction(float("nan")))
    with pytest.raises(AssertionError):
        evaluate(GRID, [0])


def test_workers_with_another_version_are_refused(asked: list[Scenario]) -> None:
    def elsewhere(function: Any, tasks: Any) -> Iterator[Any]:
        for rows in map(function, tasks):
            yield tuple(attrs.evolve(row, step_s=2 * (row.step_s or 1)) for row in rows)

    with pytest.raises(ConfigError, match=r"point \d+ comes out otherwise.*same version of this package"):
        run_grid(GRID, pool=elsewhere)


def test_progress_ends_at_the_number_of_points(asked: list[Scenario]) -> None:
    seen: list[tuple[str, int, int]] = []
    run_grid(GRID, report=lambda *what: seen.append(what))
    assert seen[-1] == ("points", 80, 80)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_the_folder_holds_every_row_in_order_twice_and_the_study(asked: list[Scenario], tmp_path: Path) -> None:
    study = run_grid(GRID, folder=tmp_path)
    written = files(tmp_path)
    assert sorted(written) == ["rows.csv", "rows.jsonl", "study.json"]
    lines = written["rows.csv"].decode().splitlines()
    assert lines[0].startswith("point,batch,runtime,status,step_s,tokens_per_s,")
    assert [line.split(",")[0] for line in lines[1:]] == [str(point) for point in range(80)]
    assert [json.loads(line)["point"] for line in written["rows.jsonl"].splitlines()] == list(range(80))
    document = json.loads(written["study.json"])
    assert document["finished"] is True
    assert document["counts"] == study.counts
    assert document["axes"]["batch"][0] == {"batch": 1}
    assert set(document["digests"]) == {"h200"}


def test_the_same_study_is_the_same_bytes(asked: list[Scenario], tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_grid(GRID, folder=tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def cut_short(function: Any, tasks: Any) -> Iterator[Any]:
    """A pool whose owner presses Ctrl-C after two chunks."""
    for at, task in enumerate(tasks):
        if at == 2:
            raise KeyboardInterrupt
        yield function(task)


def test_ctrl_c_leaves_finished_rows_and_resume_computes_only_the_missing_ones(
    asked: list[Scenario], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"interrupted; 20 of 80 rows are in .*part.*--resume goes on"):
        run_grid(GRID, pool=cut_short, folder=tmp_path / "part")
    assert json.loads(files(tmp_path / "part")["study.json"])["finished"] is False
    asked.clear()
    run_grid(GRID, folder=tmp_path / "part", resume=True)
    assert len(asked) == 60 + 1  # one is asked for before the folder is opened
    run_grid(GRID, folder=tmp_path / "whole")
    assert files(tmp_path / "part") == files(tmp_path / "whole")


def test_a_finished_study_can_be_resumed_without_computing_a_row(asked: list[Scenario], tmp_path: Path) -> None:
    run_grid(GRID, folder=tmp_path)
    before = files(tmp_path)
    asked.clear()
    study = run_grid(GRID, folder=tmp_path, resume=True)
    assert len(asked) <= 1
    assert len(study.rows) == 80
    assert files(tmp_path) == before


def test_a_row_that_was_not_written_to_its_end_is_done_again(asked: list[Scenario], tmp_path: Path) -> None:
    run_grid(GRID, folder=tmp_path)
    before = files(tmp_path)
    journal = tmp_path / "rows.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    asked.clear()
    run_grid(GRID, folder=tmp_path, resume=True)
    assert len(asked) == 1 + 1
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{}", "line 3: it is damaged"),
        (b"[1]", "line 3: it is damaged"),
        (b'{"point": 0', "line 3: it is damaged"),
        (b'{"point": 0, "labels": {"batch": 9}, "status": "impossible"}', "line 3: it is no row of this study"),
        (b'{"point": -1, "labels": {}, "status": "impossible"}', "line 3: it is no row of this study"),
        (b'{"point": 2, "labels": {"batch": 2, "runtime": "offload-sync"}, "status": "fits"}', "no row of this study"),
        (b"\xff\xfe", "line 3: it is damaged"),
    ],
)
def test_a_damaged_row_in_the_middle_is_named(
    line: bytes, says: str, asked: list[Scenario], tmp_path: Path
) -> None:
    run_grid(GRID, folder=tmp_path)
    journal = tmp_path / "rows.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], line + b"\n", *lines[3:]]))
    with pytest.raises(RecordingError, match="remove the line") as wrong:
        run_grid(GRID, folder=tmp_path, resume=True)
    assert says in str(wrong.value)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Grid(base=Scenario(budget=128), axes=AXES), "base.budget is 96 there, 128 here"),
        (Grid(axes={**AXES, "batch": (1, 2)}), "axes.batch is [{'batch': 1}, {'batch': 2}"),
        (Grid(axes={**AXES, "ctas": (2,)}), "axes.ctas is nothing there"),
        (Grid(axes={"batch": AXES["batch"]}), "axes.runtime is only there"),
        (Grid(axes=dict(reversed(AXES.items()))), "order is ['batch', 'runtime'] there, ['runtime', 'batch'] here"),
    ],
)
def test_the_folder_of_another_study_is_refused_with_what_differs(
    other: Grid, says: str, asked: list[Scenario], tmp_path: Path
) -> None:
    run_grid(GRID, folder=tmp_path)
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="holds another study") as wrong:
        run_grid(other, folder=tmp_path, resume=True)
    assert says in str(wrong.value)
    assert files(tmp_path) == before


def test_a_profile_that_has_changed_makes_another_study(asked: list[Scenario], tmp_path: Path) -> None:
    from sparda_core.simulator.derive import FOLDER

    text = (FOLDER / "h200.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    grid = Grid(base=Scenario(profile=str(mine)), axes={"batch": (1, 2)})
    run_grid(grid, folder=tmp_path / "out")
    mine.write_text(text.replace('title = "', 'title = "Another '))
    with pytest.raises(ConfigError, match=r"digests\..*mine.toml is '[0-9a-f]{12}' there"):
        run_grid(grid, folder=tmp_path / "out", resume=True)


def test_a_file_called_like_a_method_is_none_of_the_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "forecast").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert set(identity_of(Grid(axes={"batch": (1, 2)}))["digests"]) == {"h200"}


def test_a_locality_that_has_changed_makes_another_study(tmp_path: Path) -> None:
    from sparda_core.simulator.locality_file import load_locality, locality_toml

    mine = tmp_path / "mine.toml"
    grid = Grid(base=Scenario(locality=str(mine)), axes={"batch": (1, 2)})
    told = []
    for title in ("one", "another"):
        mine.write_text(locality_toml(attrs.evolve(load_locality("hisparse"), title=title)))
        told.append(identity_of(grid)["digests"][str(mine)])
    assert told[0] != told[1]


def test_a_folder_with_something_in_it_is_left_alone(asked: list[Scenario], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="is not empty; go on with --resume, or name a fresh one"):
        run_grid(GRID, folder=tmp_path)
    with pytest.raises(ConfigError, match="holds no study"):
        run_grid(GRID, folder=tmp_path, resume=True)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(RecordingError, match="not JSON"):
        run_grid(GRID, folder=tmp_path, resume=True)
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(ConfigError, match="none of ours"):
        run_grid(GRID, folder=tmp_path, resume=True)
    assert sorted(files(tmp_path)) == ["study.json", "thesis.tex"]


def test_two_runs_do_not_write_into_one_folder(asked: list[Scenario], tmp_path: Path) -> None:
    with (
        Store(tmp_path, GRID, identity_of(GRID), resume=False),
        pytest.raises(ConfigError, match="in use by another run"),
    ):
        run_grid(GRID, folder=tmp_path, resume=True)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(asked: list[Scenario], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run_grid(GRID, folder=tmp_path / "file" / "out")


def test_a_full_disk_names_the_file_and_the_rest_can_be_done_later(
    asked: list[Scenario], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sparda_core.whatif.store.os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*rows\.jsonl'"):
            run_grid(GRID, folder=tmp_path)
    assert len(run_grid(GRID, folder=tmp_path, resume=True).rows) == 80


def test_rows_are_on_the_disk_chunk_by_chunk(asked: list[Scenario], tmp_path: Path) -> None:
    counts = []

    def watch(function: Any, tasks: Any) -> Iterator[Any]:
        for task in tasks:
            counts.append(len((tmp_path / "rows.jsonl").read_bytes().splitlines()))
            yield function(task)

    run_grid(GRID, pool=watch, folder=tmp_path)
    assert counts[0] == 0
    assert counts[-1] >= 80 - 3 * CHUNK


def test_the_name_of_a_backend_is_checked_with_the_nearest_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'loky'"), open_pool("lokky"):
        raise AssertionError


def test_one_job_needs_no_joblib() -> None:
    with open_pool("loky", jobs=1) as pool:
        assert pool is serial


@pytest.mark.usefixtures("asked")
def test_a_disk_that_refuses_the_rows_themselves_is_told_by_the_journals_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, GRID, identity_of(GRID), resume=False)
    store._journal.close()
    monkeypatch.setattr(store, "_journal", Path("/dev/full").open("wb"))  # noqa: SIM115 - the store closes it

    def add() -> None:
        with store:
            store.add(evaluate(GRID, [0]))

    with pytest.raises(OSError, match=r"No space left on device: '.*rows\.jsonl'"):
        add()
