from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from sparda_core.errors import RecordingError, UnknownNameError
from sparda_core.selectors.recording import Recorder, Recording, load
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality import Fitted, LocalityModel
from sparda_core.simulator.locality_file import load_locality, locality_names, parse_locality, save_locality
from sparda_core.simulator.locality_fit import draw, fit_locality, miss_shares

SPEC = BlockSpec(sink=1, local=3, budget=32)
SHAPE = ModelShape(
    name="made", layers=4, hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=4, vocab=32, context=10**6
)
REUSE = ((1.0, 1.0), (1.5, 0.6), (4.0, 0.25))
KNOWN = LocalityModel(name="known", title="made up", source="made up", churn=0.08, reuse=REUSE, tail=1.2)


def record(model: LocalityModel, *, steps: int, rows: int = 2, tokens: int = 20_000) -> Recording:
    """Drawn selections, as `sparda record` would have stored them."""
    drawn = draw(model, SPEC, streams=4 * rows * 2, tokens=tokens, steps=steps, seed=5)
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="drawn")
    for chosen, at in zip(drawn.selections, drawn.positions, strict=True):
        recorder.add(np.repeat(at, rows), chosen.reshape(4, rows, 2, -1))
    return recorder.recording()


def fit(recording: Recording) -> LocalityModel:
    return fit_locality(recording, name="fit", file="made.npz", sha256="0" * 64)


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return record(KNOWN, steps=250)


def test_the_knobs_come_back_from_a_recording_that_was_made_with_them(recorded: Recording, tmp_path: Path) -> None:
    recorded.save(tmp_path / "made.npz")
    found = fit(load(tmp_path / "made.npz"))
    assert found.churn == pytest.approx(0.08, abs=0.0005)
    for depth in (1.1, 1.25, 1.5, 2, 2.5, 3, 4):
        assert float(found.survival(depth)) == pytest.approx(float(KNOWN.survival(depth)), abs=0.02)
    assert 4 <= found.reuse[-1][0] <= 8


def test_another_locality_gives_another_fit() -> None:
    other = fit(record(attrs.evolve(KNOWN, reuse=((1, 1), (2, 0.8)), tail=0.5), steps=60))
    assert float(other.survival(2)) > 0.7


def test_a_fit_misses_what_its_recording_misses(recorded: Recording) -> None:
    for share in miss_shares(recorded, fit(recorded)):
        assert share.model == pytest.approx(share.recording, abs=0.004)
        assert share.steady == pytest.approx(share.recording, abs=0.006)


def test_a_fit_says_what_it_rests_on(recorded: Recording) -> None:
    found = fit(recorded).fitted
    assert found is not None
    assert (found.recording, found.sha256, found.model, found.selector) == ("made.npz", "0" * 64, "made", "drawn")
    assert (found.budget, found.streams, found.steps) == (32, 16, 250)
    assert found.selected == 249 * 16 * 32
    assert found.newcomers == pytest.approx(0.08 * found.selected, abs=16)
    assert 0 < found.unseen < found.newcomers


def test_counts_by_hand_of_one_stream() -> None:
    """Budget 3 of 5 blocks, block 4 always current. Block 0 goes and comes back; block 2 had not been seen."""
    spec = BlockSpec(block=4, window=4, stride=2, sink=0, local=1, budget=3)
    shape = attrs.evolve(SHAPE, layers=1, q_heads=1, kv_heads=1)
    recorder = Recorder(shape=shape, spec=spec, selector="hand")
    for position, free in enumerate((0, 1, 0, 2), start=16):
        recorder.add([position], np.array([free, 3, 4]).reshape(1, 1, 1, 3))
    found = fit(recorder.recording())
    assert found.fitted is not None
    assert (found.fitted.selected, found.fitted.newcomers, found.fitted.unseen) == (9, 3, 2)
    assert found.churn == pytest.approx(1 / 3)


def test_a_row_that_sat_out_goes_on_from_its_own_last_selection() -> None:
    spec = BlockSpec(block=4, window=4, stride=2, sink=0, local=1, budget=3)
    recorder = Recorder(shape=attrs.evolve(SHAPE, layers=1, q_heads=1, kv_heads=1), spec=spec, selector="hand")
    for position, chosen in ((16, (0, 3, 4)), (-1, (-1, -1, -1)), (17, (0, 3, 4)), (18, (1, 3, 4))):
        recorder.add([position], np.array(chosen).reshape(1, 1, 1, 3))
    found = fit(recorder.recording()).fitted
    assert found is not None
    assert (found.selected, found.newcomers, found.unseen) == (6, 1, 1)


def test_a_block_that_was_just_opened_is_no_newcomer() -> None:
    found = fit(record(attrs.evolve(KNOWN, churn=0), steps=130))
    assert found.churn == 0
    assert found.reuse == ((1.0, 1.0),)


def test_a_recording_without_a_choice_cannot_be_fitted() -> None:
    with pytest.raises(RecordingError, match="record a longer text"):
        fit(record(KNOWN, steps=3, tokens=500))


def test_a_locality_is_read_back_as_it_was_written(recorded: Recording, tmp_path: Path) -> None:
    found = fit(recorded)
    path = save_locality(found, tmp_path / "found.toml")
    assert load_locality(path) == found
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", locality_names())
def test_shipped_localities_say_where_their_numbers_are_from(name: str) -> None:
    model = load_locality(name)
    assert model.name == name
    assert model.title
    assert len(model.source) > 20


def test_the_nearest_locality_is_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hisparse'"):
        load_locality("hisparce")


GOOD = 'name = "a"\ntitle = "b"\nsource = "c"\nchurn = 0.1\nreuse = [[1, 1], [2, 0.5]]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "not TOML"),
        (GOOD.replace("churn", "chrun"), "field 'chrun' is unknown; did you mean 'churn'"),
        (GOOD.replace("churn = 0.1\n", ""), "missing churn"),
        (GOOD.replace("0.1", "true"), "churn=True is of the wrong kind"),
        (GOOD.replace("0.1", '"much"'), "churn='much' is of the wrong kind"),
        (GOOD.replace("0.1", "nan"), "churn=nan must be in"),
        (GOOD.replace("[2, 0.5]", "[2]"), "must be a list of"),
        (GOOD.replace("[2, 0.5]", "[2, 1.5]"), "shares in"),
        (GOOD + "fitted = 3\n", "fitted=3 is of the wrong kind"),
        (GOOD + "[fitted]\nsteps = 3\n", "fitted: missing recording"),
        (GOOD + "tail = -1\n", "tail=-1"),
    ],
)
def test_a_damaged_locality_is_refused_with_the_file_and_the_field(text: str, told: str) -> None:
    assert parse_locality(GOOD).churn == 0.1
    with pytest.raises(RecordingError, match=told) as caught:
        parse_locality(text, where="mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


def test_a_locality_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        load_locality(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingError, match="is no text"):
        load_locality(tmp_path / "bad.toml")
    with pytest.raises(RecordingError, match=r"must end in .toml"):
        save_locality(KNOWN, tmp_path / "x.txt")


def test_every_count_of_a_fit_has_its_type_checked() -> None:
    counts = {field.name: '"x"' if field.type in ("str", str) else "1" for field in attrs.fields(Fitted)}
    table = "[fitted]\n" + "\n".join(f"{key} = {value}" for key, value in counts.items())
    fitted = parse_locality(GOOD + table).fitted
    assert fitted is not None
    assert fitted.steps == 1
    with pytest.raises(RecordingError, match="steps='1' is of the wrong kind"):
        parse_locality(GOOD + table.replace("steps = 1", 'steps = "1"'))
