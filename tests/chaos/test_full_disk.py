"""A disk that is full after any number of bytes: the old file stays whole, nothing lies beside it, the next works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from sparda_core.distill.history import Step
from sparda_core.distill.prepare import Need, Prepared, prepare
from sparda_core.distill.sources import Documents
from sparda_core.distill.texts import Document
from sparda_core.distill.train import Habits, train
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.models.convert_model import convert_model
from sparda_core.models.files import write_tensors
from sparda_core.models.forecast_pt import write_pt
from sparda_core.models.load import load_model
from sparda_core.models.stream import stream_tensors
from sparda_core.models.tiny import random_weights
from sparda_core.plan import StepPlan
from sparda_core.selectors.recording import Recorder
from sparda_core.shapes import BlockSpec
from sparda_core.spans import Span, Timeline
from sparda_core.trace import write_trace
from sparda_core.trace_source import Origin, TraceSource
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import run_grid
from tests.agreement.worlds import SHAPE, SPEC, pair
from tests.chaos.full_disk import open_files, room_for
from tests.distill.toy import toy_config, toy_model, toy_stream
from tests.models.gguf_files import SMALL, write_directory

TENSORS = {f"t.{i}": torch.arange(700, dtype=torch.float32) + i for i in range(4)}


def _recording(path: Path) -> None:
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="window")
    draw = np.random.default_rng(3)
    for step in range(40):
        current = (400 + step) // SPEC.block
        free = draw.permuted(np.tile(np.arange(1, current - 1), (SHAPE.layers, 1, SHAPE.kv_heads, 1)), axis=-1)[..., :2]
        forced = np.broadcast_to([0, current - 1, current], (*free.shape[:-1], 3))
        recorder.add(np.array([400 + step]), np.sort(np.concatenate([free, forced], -1)).astype(np.int32))
    recorder.recording().save(path)


def _trace(path: Path) -> None:
    plan: StepPlan = pair("forecast", "offload-prefetch").plan()
    spans = [
        Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=10 * i, end_ns=10 * i + 9)
        for i, op in enumerate(plan)
    ]
    write_trace(path, [TraceSource(timeline=Timeline(label="t", spans=spans), plan=plan, origin=Origin.PREDICTED)])


def _stream(path: Path) -> None:
    sizes = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
    stream_tensors(path, sizes, dict.fromkeys(TENSORS, torch.float32), TENSORS.__getitem__, metadata={"format": "pt"})


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_whole(path, "line\n" * 1000),
    "bytes": lambda path: write_whole(path, bytes(range(256)) * 40),
    "tensors": lambda path: write_tensors(path, TENSORS, {"format": "pt"}),
    "tensors one by one": _stream,
    "forecast of the release": lambda path: write_pt(path, TENSORS, {"block_spec": attrs.asdict(BlockSpec())}),
    "recording": _recording,
    "trace": _trace,
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_file_that_finds_no_room_leaves_the_old_one_whole_and_nothing_beside_it(what: str, tmp_path: Path) -> None:
    write, path = WRITERS[what], tmp_path / "file"
    write(path)
    size = path.stat().st_size
    assert size > 1000
    path.write_bytes(b"the old one")
    held = open_files()
    for room in (0, 1, size // 3, size - 1):
        with pytest.raises(OSError, match=r"too large|[Ff]ile|space") as told, room_for(room):
            write(path)
        assert str(path) in f"{told.value.filename} {told.value}", "whoever reads the message must know which file"
        assert path.read_bytes() == b"the old one"
        assert list(tmp_path.iterdir()) == [path]
    assert open_files() == held
    with room_for(size):
        write(path)
    assert path.stat().st_size == size


def test_a_model_that_finds_no_room_to_be_converted_leaves_no_folder(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "out" / "m"
    write_directory(source, random_weights(SMALL, seed=0, dtype=torch.float32))
    held = open_files()
    for room in (0, 100, 2_000, 20_000):
        with pytest.raises(OSError, match=r"too large|[Ff]ile|space") as told, room_for(room):
            convert_model(source, target, shard_bytes=30_000)
        assert str(target) in f"{told.value.filename} {told.value}", "whoever reads the message must know which folder"
        assert list(target.parent.iterdir()) == []
    assert open_files() == held
    convert_model(source, target, shard_bytes=30_000)
    assert load_model(target).decoder.shape.layers == SMALL.layers


@pytest.mark.parametrize("held_out", [0.2, 0.8])
def test_texts_that_find_no_room_to_be_prepared_are_prepared_once_there_is_some(
    tmp_path: Path, held_out: float
) -> None:
    def prepared() -> Prepared:
        need = Need(tokens=10**6, encode=lambda text: list(text.encode()), vocab=256, held_out=held_out, windows=500)
        return prepare([Documents([Document(f"d{i}", f"document {i} " * 9) for i in range(400)])], need, tmp_path)

    held = open_files()
    for room in (0, 300, 9_000, 30_000):
        with pytest.raises(OSError, match="too large") as told, room_for(room):
            prepared()
        assert str(tmp_path) in str(told.value.filename)
        assert list(tmp_path.iterdir()) == []
        assert open_files() == held, "what was opened for the other half of the texts must be closed, too"
    found = prepared()
    assert found.documents + found.held_documents == 400


def test_a_training_whose_checkpoint_finds_no_room_says_so_and_goes_on_from_the_last_whole_one(tmp_path: Path) -> None:
    path, stream = tmp_path / "run.checkpoint", toy_stream()
    whole = train(toy_model().decoder, stream, toy_config(steps=6))
    habits = Habits(checkpoint=path, checkpoint_every=2, resume=True)

    with contextlib.ExitStack() as full:

        def fills(told: Step) -> None:
            if told.step == 3:
                full.enter_context(room_for(path.stat().st_size // 2))

        with pytest.raises(ConfigError, match="cannot be written"):
            train(toy_model().decoder, stream, toy_config(steps=6), attrs.evolve(habits, on_step=fills))
    assert list(tmp_path.iterdir()) == [path]
    resumed = train(toy_model().decoder, stream, toy_config(steps=6), habits)
    assert resumed.losses == whole.losses
    assert torch.equal(resumed.forecast.own, whole.forecast.own)


def test_a_study_that_finds_no_room_at_any_byte_is_gone_on_with(tmp_path: Path) -> None:
    grid = Grid(base=Scenario(context=4096), axes={"batch": (1, 2, 4), "runtime": ("resident", "offload-sync")})
    run_grid(grid, folder=tmp_path / "whole")
    want = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    size = max(map(len, want.values()))
    for number, room in enumerate((0, 40, size // 3, size // 2, size - 1)):
        folder = tmp_path / str(number)
        with pytest.raises(OSError, match="too large") as told, room_for(room):
            run_grid(grid, folder=folder)
        assert str(folder) in str(told.value.filename)
        run_grid(grid, folder=folder, resume=(folder / "study.json").exists())
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == want
