"""Continued training under sparse attention: its loss and gradients, what it learns, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from sparda_core.cli.main import main
from sparda_core.compose import compose
from sparda_core.distill.adapt import OBJECTIVE, adapt, held_out_losses, token_losses
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.rows import Corpus
from sparda_core.distill.train import Habits
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.locks import locked
from sparda_core.models.config import DecoderConfig
from sparda_core.models.convert_model import convert_model
from sparda_core.models.decoder import Decoder
from sparda_core.models.load import load_model, read_model
from sparda_core.models.tiny import random_weights
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_stream
from tests.models.gguf_files import write_gguf

CONSTANTS = DecoderConfig(shape=SHAPE)
PROMPT, TOKENS = 44, 90


def weights() -> dict[str, torch.Tensor]:
    drawn = random_weights(SHAPE, seed=3, dtype=torch.float64)
    return {name: 6 * w if "q_proj" in name else w for name, w in drawn.items()}


def config(**changes: Any) -> TrainConfig:
    given = {"objective": OBJECTIVE, "positions": 1, "first_position": 40, "clip": 1.0, "lr": 3e-3, "steps": 6}
    return toy_config(**(given | changes))


def test_sparse_losses_are_those_of_a_session_that_reads_the_prompt_and_decodes_the_rest() -> None:
    decoder, ids = Decoder(CONSTANTS, weights()), toy_stream(TOKENS)
    want = []
    with compose(decoder, "query", "offload-sync", spec=SPEC, page_blocks=2).open() as session:
        row = session.add()
        logits = session.prefill(row, ids[:PROMPT].tolist())
        for token in ids[PROMPT:].tolist():
            want.append(-float(torch.log_softmax(logits, dim=-1)[token]))
            logits = session.decode({row: token}).logits[0]
    sparse = token_losses(decoder, ids, (TOKENS,), config(first_position=PROMPT), sparse=True)
    dense = token_losses(decoder, ids, (TOKENS,), config(first_position=PROMPT), sparse=False)
    assert sparse.shape == (TOKENS - 1,)
    assert sparse[PROMPT - 1 :].tolist() == pytest.approx(want, rel=1e-9)
    assert (sparse - dense)[PROMPT:].abs().max() > 1e-3


def test_documents_of_a_row_are_read_apart_and_their_first_tokens_are_not_predicted() -> None:
    decoder, ids = Decoder(CONSTANTS, weights()), toy_stream(150)
    together = token_losses(decoder, ids, (90, 60), config(), sparse=True)
    apart = [token_losses(decoder, part, (len(part),), config(), sparse=True) for part in (ids[:90], ids[90:])]
    assert len(together) == 148
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight",
                                  "model.layers.2.input_layernorm.weight", "model.embed_tokens.weight"])  # fmt: skip
def test_gradients_are_the_slopes_of_the_loss_while_the_choice_stays(name: str) -> None:
    ids = toy_stream(64)

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return token_losses(Decoder(CONSTANTS, given), ids, (64,), config(chunk_mib=1), sparse=True).mean()

    leaf = weights()[name].requires_grad_()
    loss(weights() | {name: leaf}).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    way = torch.randn(leaf.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = 1e-7
    up, down = (float(loss(weights() | {name: leaf.detach() + side * step * way})) for side in (1, -1))
    assert (up - down) / (2 * step) == pytest.approx(float((leaf.grad * way).sum()), rel=1e-4)


def test_it_learns_a_text_under_sparse_attention() -> None:
    text = torch.tensor([(3 * i * i + 5 * i) % 37 for i in range(96)]).repeat(4)
    run = config(steps=12, lr=1e-2, warmup=1)
    before = held_out_losses(Decoder(CONSTANTS, weights()), [text[:96]], run)
    found = adapt(CONSTANTS, weights(), Corpus.one(text), run, Habits(), dtype=torch.float64)
    after = held_out_losses(Decoder(CONSTANTS, found.weights), [text[:96]], run)
    assert found.history.steps == 12
    assert after["sparse"] < before["sparse"] - 0.5
    assert after["sparse"] != after["dense"]


def test_a_killed_run_that_is_resumed_ends_exactly_as_an_uninterrupted_one(tmp_path: Path) -> None:
    data, path, run = Corpus.one(toy_stream()), tmp_path / "adapt.checkpoint", config(steps=4)
    whole = adapt(CONSTANTS, weights(), data, run, Habits(), dtype=torch.float64)

    def kill(told: Any) -> None:
        if told.step == 3:
            raise KeyboardInterrupt

    habits = Habits(checkpoint=path, checkpoint_every=2, on_step=kill)
    with pytest.raises(KeyboardInterrupt):
        adapt(CONSTANTS, weights(), data, run, habits, dtype=torch.float64)
    again = attrs.evolve(habits, resume=True, on_step=None)
    resumed = adapt(CONSTANTS, weights(), data, run, again, dtype=torch.float64)
    assert resumed.history.losses == whole.history.losses
    assert all(torch.equal(resumed.weights[name], w) for name, w in whole.weights.items())
    with pytest.raises(ConfigError, match="lr differ"):
        adapt(CONSTANTS, weights(), data, attrs.evolve(run, lr=1e-3), again, dtype=torch.float64)


def test_the_command_writes_a_model_that_loads_and_says_how_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf")
    (tmp_path / "text.txt").write_text(" ".join(f"line {i} of the text" for i in range(300)))
    words = [
        "adapt", "--out", tmp_path / "adapted", "--model", tmp_path / "small.gguf", "--text", tmp_path / "text.txt",
        "--steps", 2, "--batch", 1, "--window", 160, "--first-position", 64, "--block", 16, "--entries", "8/4",
        "--local", 1, "--budget", 4, "--dtype", "float32", "--held-out", 0, "--lr", 0.01, "--warmup", 0, "--json",
    ]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["losses"]) == 2
    assert told["config"]["spec"]["budget"] == 4
    assert str(tmp_path) not in json.dumps(told)
    adapted, base = (load_model(tmp_path / name).decoder for name in ("adapted", "small.gguf"))
    assert (adapted.query_weight(0) - base.query_weight(0)).abs().max() > 1e-3
    assert json.loads((tmp_path / "adapted" / "sparda-adapt.json").read_text()) == told
    assert read_model(tmp_path / "adapted").tokenizer is not None
    assert main([str(word) for word in words]) == 2
    assert "exists; name a folder that does not" in capsys.readouterr().err


def test_tensors_that_a_model_does_not_have_are_not_written_into_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight cannot be replaced"):
        convert_model(tmp_path / "small.gguf", tmp_path / "new", instead={"model.norm.weight": torch.zeros(3)})
    assert not (tmp_path / "new").exists()


def test_adapt_refuses_places_that_collide_and_says_when_no_loss_can_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf")
    (tmp_path / "text.txt").write_text(" ".join(f"line {i} of the text" for i in range(200)))
    out = str(tmp_path / "out")
    given = [
        "adapt", "--model", str(tmp_path / "small.gguf"), "--text", str(tmp_path / "text.txt"), "--out", out,
        "--steps", "1", "--batch", "1", "--window", "448", "--first-position", "384", "--held-out", "0",
    ]  # fmt: skip
    for name in ("checkpoint", "results"):
        assert main([*given, f"--{name}", out]) == 2
        assert f"{name}={out!r} is the place of --out" in capsys.readouterr().err
    assert main([*given, "--checkpoint-every", "0"]) == 2
    assert main(given) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "no held-out document of >= 448 tokens in the text: no loss of held-out text is told" in said


def small_run(folder: Path, *extra: str) -> list[str]:
    """A run of one step, into folder/out."""
    write_gguf(folder / "small.gguf")
    (folder / "text.txt").write_text(" ".join(f"line {i} of the text" for i in range(200)))
    return [
        "adapt", "--model", str(folder / "small.gguf"), "--text", str(folder / "text.txt"), "--out",
        str(folder / "out"), "--steps", "1", "--batch", "1", "--window", "448", "--first-position", "384", "--held-out",
        "0", "--evaluate-windows", "0", *extra,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["out", "out.checkpoint", "elsewhere"])
def test_two_adaptations_into_one_folder_or_one_checkpoint_are_kept_apart(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))
    run = small_run(tmp_path, *(["--checkpoint", str(tmp_path / name)] if name == "elsewhere" else []))
    option = "out" if name == "out" else "checkpoint"
    with locked(tmp_path / name):
        assert main(run) == 2
    assert f"{option}={str(tmp_path / name)!r} is being written by another run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(run) == 0
    assert not list(tmp_path.glob("*.lock"))


def test_adapt_refuses_folders_and_devices_that_are_not_there_before_it_reads_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparda_core.distill.adapt_command.read_model", lambda *_a, **_k: pytest.fail("read"))
    run, missing = small_run(tmp_path), tmp_path / "no" / "model"
    for words in (["--out", str(missing)], ["--results", str(missing)], ["--checkpoint", str(missing)]):
        assert main([*run, *words]) == 2
        assert f"{missing}: its folder {str(missing.parent)!r} does not exist" in capsys.readouterr().err
    assert main([*run, "--results", str(tmp_path / "out.checkpoint")]) == 2
    assert "is the place of the checkpoint" in capsys.readouterr().err
    assert main([*run, "--device", "tpu"]) == 2
    assert "device='tpu' is" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.lock"))


def test_adapt_encodes_ids_of_another_tokenizer_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stop(_sources: Any, need: Any, *_given: Any, **_options: Any) -> None:
        asked.append(need.decode([72]))
        raise KeyboardInterrupt

    monkeypatch.setattr("sparda_core.distill.adapt_command.prepare", stop)
    monkeypatch.setattr("sparda_core.distill.adapt_command.sources_of", lambda _args: ([], None))
    run = small_run(tmp_path)
    tokenizer = read_model(tmp_path / "small.gguf").tokenizer
    assert tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    assert main([*run, "--mds", "shards", "--source-tokenizer", str(tmp_path / "tokenizer.json")]) == 130
    assert asked == [tokenizer.decode([72])]


def test_the_help_of_adapt_names_each_default_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("(default: 5e-05)") == 1
    assert "--lr LR peak learning rate (default: 5e-05)" in said
