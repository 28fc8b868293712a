"""The recording format: what goes in comes out, and nothing unsound gets through."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import RecordingError
from sparda_core.facts import steady_facts
from sparda_core.selectors import recording as module
from sparda_core.selectors.observer import SelectionObserver
from sparda_core.selectors.recording import Recorder, Recording, load
from sparda_core.selectors.replay import Replay
from sparda_core.shapes import BlockSpec
from tests.selectors.cases import record_query, recorded_query
from tests.selectors.world import SHAPE, SPEC, Drive, World

WORLD = World.random()


def small() -> Recording:
    """Three steps of two rows, with facts."""
    recording = record_query(WORLD, texts=(0, 1), start=100, stop=103)
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=2, context=101, churn=0.1)
    return attrs.evolve(recording, facts=(facts,) * 3)


def test_a_recording_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    small().save(tmp_path / "a.npz")
    assert load(tmp_path / "a.npz") == small()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_misses_under_score_and_notes_come_back_too_and_are_checked(tmp_path: Path) -> None:
    plain = small()
    shape = (plain.steps, 3, plain.layers, plain.rows, plain.kv_heads)
    full = attrs.evolve(plain, scored=np.ones(shape, np.int16), notes={"command": "sparda record"})
    full.save(tmp_path / "a.npz")
    assert load(tmp_path / "a.npz") == full
    assert full != plain
    wrongs: tuple[Any, ...] = (np.ones(shape, np.int32), np.ones(shape[1:], np.int16), np.full(shape, 99, np.int16))
    for wrong in wrongs:
        with pytest.raises(RecordingError, match="scored"):
            attrs.evolve(plain, scored=wrong)


def test_the_same_recording_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        small().save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_chunk_is_recorded_as_one_step_a_token() -> None:
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="window")
    ids = np.zeros((SHAPE.layers, 1, SHAPE.kv_heads, 4, 1), np.int32)
    recorder.add([[0, 1, 2, 3]], ids)
    recording = recorder.recording()
    assert recording.positions.tolist() == [[0], [1], [2], [3]]
    assert recording.selections.shape == (4, SHAPE.layers, 1, SHAPE.kv_heads, SPEC.budget)


@pytest.mark.parametrize(
    ("positions", "shape"),
    [([0], (3, 2, 2, 1)), ([0, 0], (3, 1, 2, 1)), ([0], (2, 1, 2, 1)), ([0], (3, 1, 2, 6)), (0, (3, 1, 2, 1))],
)
def test_a_step_that_does_not_fit_the_run_is_refused(positions: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(RecordingError, match="position"):
        Recorder(shape=SHAPE, spec=SPEC, selector="window").add(positions, np.zeros(shape, np.int32))


def test_nothing_recorded_is_no_recording() -> None:
    with pytest.raises(RecordingError, match="nothing was recorded"):
        Recorder(shape=SHAPE, spec=SPEC, selector="window").recording()


def test_facts_come_with_every_step_or_with_none() -> None:
    with pytest.raises(RecordingError, match="1 facts for 3 steps"):
        attrs.evolve(small(), facts=small().facts[:1])


UNLAWFUL: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "a future block": (lambda ids: ids.__setitem__(-1, 7), "after the query's own"),
    "a repeat": (lambda ids: ids.__setitem__(1, 0), "ascending"),
    "a gap": (lambda ids: ids.__setitem__(1, -1), "ascending"),
    "an id below -1": (lambda ids: ids.__setitem__(-1, -2), "ascending"),
    "no sink": (lambda ids: ids.__setitem__(slice(None), [1, 2, 3, 5, 6]), "lacks sink block 0"),
    "no current block": (lambda ids: ids.__setitem__(slice(None), [0, 1, 2, 4, 5]), "lacks the local block 0"),
    "no block before": (lambda ids: ids.__setitem__(slice(None), [0, 1, 2, 4, 6]), "lacks the local block 1"),
    "nothing": (lambda ids: ids.fill(-1), "lacks"),
}


@pytest.mark.parametrize("what", UNLAWFUL)
def test_an_unlawful_selection_is_refused(what: str) -> None:
    change, message = UNLAWFUL[what]
    recording = small()
    ids = recording.selections.copy()
    change(ids[1, 2, 1, 0])
    with pytest.raises(RecordingError, match=rf"step 1: selection .*{message}"):
        attrs.evolve(recording, selections=ids)


def test_a_row_that_sat_out_must_have_chosen_nothing() -> None:
    recording = small()
    positions = recording.positions.copy()
    positions[2, 0] = -1
    with pytest.raises(RecordingError, match=r"step 2: .*sat out"):
        attrs.evolve(recording, positions=positions)
    ids = recording.selections.copy()
    ids[2, :, 0] = -1
    assert attrs.evolve(recording, positions=positions, selections=ids).steps == 3


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Change members of a saved recording."""
    small().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=allow_pickle)
    return file.getvalue()


def meta(**changes: Any) -> bytes:
    known = {**small()._meta(), **changes}
    return npy(np.frombuffer(json.dumps({k: v for k, v in known.items() if v is not None}).encode(), np.uint8))


def header(shape: tuple[int, ...]) -> bytes:
    """An .npy file that promises more than it has."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<i4", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


UNSOUND: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a missing array": (lambda m: m.pop("positions.npy"), "holds"),
    "an unknown array": (lambda m: m.update({"extra.npy": b""}), "holds"),
    "objects": (lambda m: m.update({"meta.npy": npy(np.array([{}], object), allow_pickle=True)}), "meta.npy is object"),
    "another type": (lambda m: m.update({"positions.npy": npy(np.zeros((3, 2)))}), "positions.npy is float64"),
    "a promise of more": (lambda m: m.update({"selections.npy": header((9, 9, 9, 9, 10**6))}), "but has"),
    "a negative size": (lambda m: m.update({"selections.npy": header((-1, -1, -1, -1, 16))}), "selections"),
    "an array by columns": (lambda m: m.update({"positions.npy": npy(np.ones((2, 3), int).T)}), "row by row"),
    "another format": (lambda m: m.update({"meta.npy": meta(format=2)}), "format=2 must be 1"),
    "another count of layers": (lambda m: m.update({"meta.npy": meta(layers=4)}), "layers=4"),
    "no model": (lambda m: m.update({"meta.npy": meta(model=None)}), "meta lacks 'model'"),
    "an impossible spec": (lambda m: m.update({"meta.npy": meta(spec={"budget": 1})}), "budget=1 must be"),
    "an unknown spec": (lambda m: m.update({"meta.npy": meta(spec={"colour": 1})}), "colour"),
    "no JSON": (lambda m: m.update({"meta.npy": npy(np.zeros(4, np.uint8))}), "JSON"),
    "a list for meta": (lambda m: m.update({"meta.npy": npy(np.frombuffer(b"[1]", np.uint8))}), "format"),
    "facts that are none": (lambda m: m.update({"facts.npy": npy(np.frombuffer(b"[1,2,3]", np.uint8))}), "facts"),
    "facts of one number": (lambda m: m.update({"facts.npy": npy(np.frombuffer(b"1", np.uint8))}), "sound"),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_an_unsound_file_is_refused_with_its_name_and_the_reason(what: str, tmp_path: Path) -> None:
    change, message = UNSOUND[what]
    path = rewritten(tmp_path / "a.npz", lambda members: (change(members), None)[1])
    with pytest.raises(RecordingError, match=rf"a\.npz: .*{message}"):
        load(path)


def test_a_file_that_unpacks_to_too_much_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path / "a.npz")
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(RecordingError, match=r"unpacks to .* at most 1000"):
        load(tmp_path / "a.npz")


def test_a_file_that_is_not_there_or_not_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        load(tmp_path / "none.npz")
    with pytest.raises(RecordingError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "text.npz").write_text("selections")
    with pytest.raises(RecordingError, match="not a sound recording"):
        load(tmp_path / "text.npz")


@given(data=st.data())
def test_a_damaged_or_truncated_file_never_passes_for_another_recording(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    small().save(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    with contextlib.suppress(RecordingError):
        assert load(path) == small()  # where what changed was a time stamp, say


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()

    def full(archive: zipfile.ZipFile, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space left"):
        recorded_query().save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_an_observer_drops_a_step_that_failed_half_way_and_rows_it_does_not_know() -> None:
    observer = SelectionObserver(shape=SHAPE, spec=SPEC, selector="query", rows=(1, 0))
    drive = Drive(record_selector(), WORLD)

    def see(texts: list[int], position: int, layers: range) -> None:
        for layer in layers:
            view = WORLD.view(texts, [[position]] * len(texts), layer=layer)
            for kind in ("score", "select"):
                drive.bound.run(kind, view)
            observer(view)

    see([0, 2, 1], 100, range(SHAPE.layers))
    see([0, 2, 1], 101, range(1))
    see([0], 101, range(SHAPE.layers))
    see([0], 102, range(2))
    see([0], 102, range(SHAPE.layers))
    recording = observer.recording()
    assert recording.positions.tolist() == [[100, 100], [-1, 101], [-1, 102]]
    want = record_query(WORLD, texts=(1, 0), start=100, stop=101)
    np.testing.assert_array_equal(recording.selections[0], want.selections[0])


def record_selector() -> Any:
    from sparda_core.selectors.query import Query

    return Query()


# Replay -------------------------------------------------------------------------------------------


def replay(recording: Recording, tmp_path: Path, *, spec: BlockSpec = SPEC, world: World | None = None) -> Drive:
    recording.save(tmp_path / "r.npz")
    return Drive(Replay(path=tmp_path / "r.npz"), world or World.random(spec=spec), lead=1)


def test_replay_plays_what_was_recorded_in_whatever_order_rows_come(tmp_path: Path) -> None:
    recording = recorded_query()
    drive = replay(recording, tmp_path)
    first = drive.decode([0, 1, 2], [90, 100, 110], rows=(5, 6, 7))
    then = drive.decode([2, 0], [111, 91], rows=(7, 5))
    for column, position in ((0, 90), (1, 100), (2, 110)):
        np.testing.assert_array_equal(first[:, column, :, 0], recording.selections[position, :, column])
    np.testing.assert_array_equal(then[:, 0, :, 0], recording.selections[111, :, 2])
    np.testing.assert_array_equal(then[:, 1, :, 0], recording.selections[91, :, 0])


def test_replay_in_a_wider_budget_is_padded_and_in_a_narrower_one_refused(tmp_path: Path) -> None:
    got = replay(recorded_query(), tmp_path, spec=SPEC.with_budget(8)).decode([0], [100])
    np.testing.assert_array_equal(got[:, 0, :, 0, :5], recorded_query().selections[100, :, 0])
    assert (got[..., 5:] == -1).all()
    with pytest.raises(RecordingError, match=r"5 wide and budget=4: raise budget to 5"):
        replay(recorded_query(), tmp_path, spec=SPEC.with_budget(4)).decode([0], [100])


def test_replay_of_a_position_that_was_not_recorded_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"position=190 of recorded row 0 .*recorded positions: 0 to 189"):
        replay(recorded_query(), tmp_path).decode([0], [190])


def test_a_recording_of_one_row_serves_every_row_and_one_of_three_serves_three(tmp_path: Path) -> None:
    one = record_query(WORLD, texts=(1,), start=100, stop=101)
    got = replay(one, tmp_path).decode([0, 1, 2, 0], [100] * 4, rows=(0, 1, 2, 3))
    assert (got == one.selections[0, :, 0][:, None, :, None]).all()
    with pytest.raises(RecordingError, match="3 rows were recorded, and row 3 is one more"):
        replay(recorded_query(), tmp_path).decode([0, 1, 2, 0], [100] * 4, rows=(0, 1, 2, 3))


def test_where_a_position_was_recorded_twice_the_later_step_is_played(tmp_path: Path) -> None:
    early, late = (record_query(WORLD, texts=(text,), start=100, stop=101) for text in (0, 1))
    both = attrs.evolve(
        early,
        selections=np.concatenate((early.selections, late.selections)),
        positions=np.concatenate((early.positions, late.positions)),
    )
    got = replay(both, tmp_path).decode([0], [100])
    np.testing.assert_array_equal(got[:, 0, :, 0], late.selections[0, :, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 4}, "layers=3 .*has layers=4"),
        ({"kv_heads": 3}, "kv_heads=2 .*has kv_heads=3"),
    ],
)
def test_a_recording_of_another_model_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    recorded_query().save(tmp_path / "r.npz")
    with pytest.raises(RecordingError, match=message):
        Replay(path=tmp_path / "r.npz").bind(shape=attrs.evolve(SHAPE, **change), spec=SPEC)


@pytest.mark.parametrize("change", [{"block": 32}, {"sink": 0}, {"local": 2}])
def test_a_recording_of_another_spec_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    recorded_query().save(tmp_path / "r.npz")
    with pytest.raises(RecordingError, match=f"{next(iter(change))}="):
        Replay(path=tmp_path / "r.npz").bind(shape=SHAPE, spec=attrs.evolve(SPEC, **change))
