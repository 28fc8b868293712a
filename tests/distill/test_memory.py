"""A training step takes the memory that is stated, and never a score for every query and key."""

from __future__ import annotations

import json

import attrs
import pytest
import torch

from sparda_core.cli.main import main
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.memory import MemoryPlan, plan_memory
from sparda_core.distill.train import train
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import random_weights
from sparda_core.shapes import SHAPES, BlockSpec, ModelShape
from tests.distill.watched import LiveBytes

SHAPE = ModelShape(
    name="wide", layers=2, hidden=64, ffn=128, q_heads=4, kv_heads=2, head_dim=16, vocab=97, context=4096,
    tied_embeddings=True,
)  # fmt: skip
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=8)


def run_of(objective: str, window: int) -> TrainConfig:
    options = {
        "spec": SPEC, "objective": objective, "teacher": "fine", "window": window, "steps": 1, "chunk_mib": 1,
    }  # fmt: skip
    if objective == "reference":
        return TrainConfig.reference(**(options | {"batch": 1}))
    return TrainConfig(**options, first_position=64, positions=window)  # type: ignore[arg-type]


def measured(config: TrainConfig) -> tuple[LiveBytes, MemoryPlan]:
    decoder = Decoder(DecoderConfig(shape=SHAPE), random_weights(SHAPE, seed=0, dtype=torch.float32))
    stream = torch.randint(0, 97, (config.window,), generator=torch.Generator().manual_seed(0))
    with LiveBytes() as live:
        train(decoder, stream, config)
    plan = plan_memory(SHAPE, config, value_bytes=4)
    return live, attrs.evolve(plan, model=0)  # the model was there before the watch began


@pytest.mark.parametrize("objective", ["block", "reference"])
def test_a_step_takes_about_what_the_plan_says(objective: str) -> None:
    live, plan = measured(run_of(objective, 1024))
    assert 0.4 * plan.peak < live.peak < 1.15 * plan.peak


def test_no_score_for_every_query_and_key_is_ever_made() -> None:
    config = run_of("reference", 1024)
    live, plan = measured(config)
    every_pair = SHAPE.kv_heads * 1024 * 1023 * 4
    assert plan.full >= 2 * every_pair
    assert live.largest < every_pair / 4
    assert live.peak < every_pair
    together, _ = measured(attrs.evolve(config, chunk_mib=4096))
    assert together.peak > 2 * every_pair  # the watch would have noticed


def test_memory_grows_with_the_window_and_not_with_its_square() -> None:
    peaks = [measured(run_of("block", window))[0].peak for window in (512, 1024)]
    assert peaks[1] < 2.3 * peaks[0]
    shape, config = SHAPES["minicpm4.1-8b"], TrainConfig.reference(window=65536, spec=BlockSpec(local=32, budget=96))
    plans = [plan_memory(shape, attrs.evolve(config, window=n, positions=n)) for n in (65536, 131072)]
    assert plans[1].scores < 1.1 * plans[0].scores
    assert plans[1].full == pytest.approx(4 * plans[0].full, rel=0.01)


def test_the_plan_is_shown_by_window_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--plan", "--shape", "minicpm4.1-8b", "--objective", "reference"]
    words += ["--local", "32", "--budget", "96"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["windows"]) == ["2048", "8192", "65536", "131072"]
    row = told["windows"]["65536"]
    parts = ("model", "optimiser", "activations", "lesson", "scores")
    assert sum(row[name] for name in parts) == row["peak"]
    assert row["never_made"] > 16 * 2**30
    assert main(words) == 0
    assert "131072" in capsys.readouterr().out
