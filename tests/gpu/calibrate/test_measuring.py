"""The measuring half of `sparda calibrate --device cuda`: every section, next to no size, interpreted without a GPU."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.bench.gpu_calibration.contention import CLASSES  # isort: skip
from sparda_core.bench.gpu_calibration.copies import by_all_gpus
from sparda_core.bench.gpu_calibration.points import points
from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.run import Measuring, identity_of
from sparda_core.bench.gpu_calibration.sizes import KIB, MIB, Sizes, full, quick
from sparda_core.bench.gpu_calibration.small_kernels import case_of
from sparda_core.errors import ConfigError
from sparda_core.kernels.corunners.gpu import copy_memory, spin
from sparda_core.models.tiny import TINY_SHAPE
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.gpu_fit.samples import SECTIONS, SampleFile, read_samples

#: The interpreter's bfloat16 is wrong.
TINY = Sizes(
    shape=attrs.evolve(TINY_SHAPE, layers=1, head_dim=16, kv_heads=1, q_heads=2, hidden=32), context=62,
    spec=BlockSpec(block=16, window=8, stride=8, sink=0, local=1, budget=3), dtype="float32", batches=(2,),
    elastic=(1,), classes=("qkv", "choose"), ctas=(1,), product_rows=(2,), in_turn=(2,), whole=(1,),
    beside=((1, 16, 4),), first=((1, 16, 4),), alone=((1, 16, 4),), repeated=((1, 16, 4),),
    forked=((1, 16, 4),), forked_rows=(2, 3), forked_few=(2,), forked_cuts=((3, 2),), forked_us=1.0, forked_layers=2,
    forked_repeats=1,
    sizes=(4 * KIB, 16 * KIB), pieces=(4 * KIB,), counts=(2,), list_blocks=(2,),
    pool_bytes=2 * MIB, list_bytes=64 * KIB, device_bytes=1 * MIB, square=16, layers=1, launches=2,
    beside_us=1.0, repeats=1, replays=1,
)  # fmt: skip


def test_every_section_measures_something_and_the_file_reads_back(tmp_path: Path) -> None:
    kept = SampleFile(tmp_path / "mine.samples.json", identity_of(TINY), {"command": "test"})
    told: list[tuple[str, int, int]] = []
    Measuring(TINY, lambda what, done, total: told.append((what, done, total)), shrink=256).run(kept)
    assert kept.missing == ()
    read = read_samples(kept.path)
    assert tuple(read.sections) == SECTIONS
    assert {name for name in SECTIONS if not read.sections[name]} <= ({"grids"} if DEVICE.type == "cpu" else set())
    assert {row["kernel"] for row in read.rows("kernels")} == set(CLASSES)
    assert all(math.isfinite(us) and us > 0 for row in read.rows("kernels") for us in row["us"])
    parts = {"project", "output", "mlp", "proxy", "layer", "head", "begin", "whole layer", "step to step"}
    assert {row["what"] for row in read.rows("sequence")} == parts
    assert all(math.isfinite(us) for row in read.rows("sequence") for us in row["us"])
    assert {row["co"] for row in read.rows("elasticity")} == {"spin", "memory", "gather"}
    assert len(read.rows("beside products")) == 3
    beside = ["attend", "products", "score", "small", "append", "layer"]
    assert [(row["beside"], row["rows"], row["splits"]) for row in read.rows("forked")] == [
        ("nothing", 0, None), *((name, 2, None) for name in beside), ("attend", 3, None), ("products", 3, None),
        ("layer", 3, None),
        ("attend", 3, 2),
    ]  # fmt: skip
    assert read.rows("forked")[-1]["ops"][0]["work"]["ctas"] == 3 * 2
    assert all(len(row["copies"]) == len(TINY.forked) for row in read.rows("forked"))
    assert read.one("machine")["device_copy_bytes_per_s"][0] > 0
    assert told[-1] == ("calibration: sections", len(SECTIONS), len(SECTIONS))


def test_a_calibration_that_is_cut_keeps_whole_sections_and_measures_the_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def section(self: Measuring, name: str) -> list[dict[str, str]]:
        asked.append(name)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return [{"what": name}]

    monkeypatch.setattr(Measuring, "_section", section)
    path = tmp_path / "mine.samples.json"
    with pytest.raises(KeyboardInterrupt):
        Measuring(TINY, lambda *_: None).run(SampleFile(path, identity_of(TINY), {}))
    kept = read_samples(path)
    assert tuple(kept.sections) == SECTIONS[:3]
    assert kept.missing == SECTIONS[3:]
    file = SampleFile(path, identity_of(TINY), {})
    file.samples = kept
    Measuring(TINY, lambda *_: None).run(file)
    assert tuple(asked) == (*SECTIONS[:4], *SECTIONS[3:])
    assert tuple(read_samples(path).sections) == SECTIONS


@pytest.mark.gpu
def test_all_gpus_of_a_machine_copy_at_once(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA devices, this machine has {torch.cuda.device_count()}")
    pool = Pool(256 * MIB, MIB)
    (row,) = by_all_gpus(attrs.evolve(TINY, sizes=(16 * MIB,)), pool)
    assert (row["gpus"], row["bytes"]) == (torch.cuda.device_count(), 16 * MIB)
    assert len(row["us"]) == TINY.repeats
    assert all(us > 0 for us in row["us"])


def test_one_gpu_has_no_others_to_copy_beside() -> None:
    if torch.cuda.device_count() < 2:
        assert by_all_gpus(TINY, Pool(MIB, MIB)) == []


def test_a_full_and_a_quick_calibration_ask_for_copies_that_exist() -> None:
    for sizes in (full(), quick()):
        for ctas, in_flight, block in (*sizes.alone, *sizes.beside, *sizes.first, *sizes.repeated):
            assert 1 <= ctas <= 32
            assert in_flight in (16, 32, 64, 128)
            assert sizes.pool_bytes % (block * KIB) == 0
        assert sizes.block_kib == 32


def test_a_full_calibration_times_kernels_between_the_usual_rows_and_at_other_contexts() -> None:
    every = points(full(), CLASSES)
    assert len(every) == len(set(every))
    assert {point.kernel for point in every} == set(CLASSES)
    assert [point.kernel for point in every] == sorted((p.kernel for p in every), key=CLASSES.index)
    assert all(1 <= point.rows <= 256 and 12288 <= point.context <= 262144 for point in every)
    assert {point.slots for point in every if "lru" in point.kernel} == {1, 2, 3, 4}
    assert {point.rows for point in points(quick(), CLASSES)} == {1, 16, 64}


def test_slots_that_hold_more_than_a_selection_are_searched() -> None:
    assert case_of("diff lru", TINY, 2, slots=2).work.searched == 2 * TINY.spec.budget
    assert case_of("diff last-selection", TINY, 2).work.searched == 0
    assert case_of("choose", TINY, 2).work.searched == TINY.spec.block_count(TINY.context)


@pytest.mark.parametrize("ctas", [1, 3])
def test_the_memory_co_runner_copies_every_word_and_no_more(ctas: int) -> None:
    source = torch.arange(40_000, dtype=torch.int32, device=DEVICE)
    target = torch.full((50_000,), -7, dtype=torch.int32, device=DEVICE)
    copy_memory(source, target[:40_000], ctas)
    assert torch.equal(target[:40_000], source)
    assert (target[40_000:] == -7).all()


def test_the_spinning_co_runner_does_all_of_its_turns() -> None:
    out = torch.full((3,), -1.0, device=DEVICE)
    spin(out, 2, 1)
    want = [sum((at + first) / 2 + 1 for n in (32 * 1024, 16 * 1024) for at in range(n)) for first in (0, 1)]
    assert out.tolist()[:2] == pytest.approx(want, rel=1e-5)
    assert out[2] == -1


def test_co_runners_refuse_what_they_cannot_do() -> None:
    words = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ConfigError, match="ctas=0 must be >= 1"):
        spin(words.float(), 0, 1)
    with pytest.raises(ConfigError, match="must be int32 of one shape"):
        copy_memory(words, words[:2], 1)
