"""Processes that share a run learn what one process learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.distill.parallel import World, own_device
from sparda_core.distill.sharded import ShardedDecoder
from sparda_core.distill.train import Habits, train
from sparda_core.distill.validation import Validation
from sparda_core.errors import ConfigError
from tests.distill.shared_run import WAYS
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream
from tests.house.tree import ROOT

# By this machine's own address: its name need not be one that resolves.
TORCHRUN = ("torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
# Its own "--cpu" starts one process; this one starts as many as asked for, and the script says on what.
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")  # fmt: skip



def start(launcher: tuple[str, ...], out: Path, device: str, *ways: str) -> list[dict[str, Any]]:
    """Run shared_run.py under a launcher; what each process wrote, by rank."""
    script = ROOT / "tests" / "distill" / "shared_run.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
           "OMP_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(script), str(out), device, *ways],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in (0, 1)]


def alone(device: str = "cpu", *, biased: bool = False) -> dict[str, Any]:
    decoder = toy_model(device=device, biased=biased).decoder
    windows = [toy_stream(300)[i : i + 90] for i in (0, 90, 180)]
    validate = Validation(decoder=decoder, windows=windows, spec=SPEC)
    habits = Habits(evaluate=validate, evaluate_every=3)
    result = train(decoder, toy_stream(), toy_config(batch=4, steps=6, clip=0.05), habits)
    return {"history": result.history.as_json(), "first": result.forecast.own[0, :4].tolist()}


def assert_same_run(got: list[dict[str, Any]], want: dict[str, Any]) -> None:
    """Every loss, gradient norm, layer's loss, recall and weight, up to the order of sums in float64."""
    for told in got:
        assert told["size"] == 2
        for theirs, ours in zip(told["history"]["steps"], want["history"]["steps"], strict=True):
            torch.testing.assert_close(torch.tensor(theirs[:4]), torch.tensor(ours[:4]), rtol=1e-9, atol=0)
            torch.testing.assert_close(torch.tensor(theirs[4]), torch.tensor(ours[4]), rtol=1e-9, atol=0)
        assert told["history"]["evaluations"] == [pytest.approx(one) for one in want["history"]["evaluations"]]
        assert told["first"] == pytest.approx(want["first"], rel=1e-9)


def test_two_processes_learn_what_one_learns_with_the_models_layers_whole_or_shared_out(tmp_path: Path) -> None:
    got, want = start(TORCHRUN, tmp_path / "two", "cpu", *WAYS), {kind: alone(biased=kind) for kind in (False, True)}
    for way, (_, biased) in WAYS.items():
        assert_same_run([told[way] for told in got], want[biased])
    with pytest.raises(AssertionError):
        assert_same_run([told["sharded"] for told in got], want[True])
    other = json.loads(json.dumps(want[False]))
    other["history"]["steps"][3][1] *= 1 + 1e-6
    with pytest.raises(AssertionError):
        assert_same_run([told["whole"] for told in got], other)


@pytest.mark.slow
def test_accelerate_starts_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the extra `accelerate` is not installed")
    got = start(ACCELERATE, tmp_path / "two", "cpu", "whole")
    assert_same_run([told["whole"] for told in got], alone())


@pytest.mark.gpu
def test_two_gpus_learn_what_one_learns(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA devices, this machine has {torch.cuda.device_count()}")
    got = start(TORCHRUN, tmp_path / "two", "cuda", *WAYS)
    for way, (_, biased) in WAYS.items():
        assert_same_run([told[way] for told in got], alone("cuda", biased=biased))


def test_a_batch_that_processes_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch=3 must be a multiple of the number of processes=2"):
        train(toy_model().decoder, toy_stream(), toy_config(batch=3), world=World(rank=0, size=2))
    with pytest.raises(ConfigError, match="needs several processes"):
        ShardedDecoder.of(toy_model().decoder, World(), "cpu")


def test_a_larger_batch_is_the_mean_over_its_queries() -> None:
    """Rows of unequal length: every query weighs alike, whichever row it is in."""
    config = toy_config(steps=1, batch=2, positions=1000, documents="apart")
    together = train(toy_model().decoder, toy_stream(150), config)
    rows = [toy_stream(150)[:96], toy_stream(150)[96:]]
    single = [train(toy_model().decoder, row, toy_config(steps=1, positions=1000)) for row in rows]
    asked = [len(row) - 40 for row in rows]
    want = sum(n * one.losses[0] for n, one in zip(asked, single, strict=True)) / sum(asked)
    assert together.losses[0] == pytest.approx(want, rel=1e-12)


def test_each_process_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_device("cuda") == "cuda"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (own_device("cuda"), own_device("cpu"), own_device("cuda:0")) == ("cuda:1", "cpu", "cuda:0")


def test_gradients_are_clipped_to_the_norm_that_is_told() -> None:
    free, clipped = (train(toy_model().decoder, toy_stream(), toy_config(steps=3, clip=c, eps=10.0)) for c in (0, 1e-3))
    assert free.history.told[0].norm == pytest.approx(clipped.history.told[0].norm)
    assert free.history.told[0].norm > 1e-2
    moved = [abs(run.forecast.own - train(toy_model().decoder, toy_stream(), toy_config(steps=1, lr=0.0)).forecast.own)
             .max() for run in (free, clipped)]  # fmt: skip
    assert float(moved[1]) < 0.5 * float(moved[0])
