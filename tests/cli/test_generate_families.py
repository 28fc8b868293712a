"""`sparda generate` on every family that loads, under several combinations, with its own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from sparda_core.cli.main import main
from sparda_core.models.forecast_weights import OWN_KEY, following_key
from sparda_core.models.load import load_model
from sparda_core.models.safetensors_dir import read_constants
from sparda_core.models.tiny import random_weights

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 260, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "eos_token_id": 257,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.5, 2.5, 4.0, 7.0],
    "original_max_position_embeddings": 256,
}  # fmt: skip
SPARSE = {
    "kernel_size": 8, "kernel_stride": 4, "init_blocks": 1, "block_size": 16, "window_size": 32, "topk": 4,
    "use_nope": False, "dense_len": 128,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": YARN},
    "qwen2": {},
    "qwen3": {},
    "minicpm": {
        "rope_scaling": LONG, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8, "sparse_config": SPARSE,
    },
}  # fmt: skip


def write(path: Path, family: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": family} | SIZES | FAMILIES[family]))
    config = read_constants(path)
    save_file(random_weights(config.shape, seed=1, dtype=torch.bfloat16, config=config), path / "model.safetensors")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if family == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "add_bos_token": family in ("llama", "minicpm")})
    )
    return path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["generate", "The quick brown fox jumps over it. " * 3, "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_continued_as_its_dense_forward_says(
    tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "m", family)
    words = ("--model", str(folder), "--max-new-tokens", "12", "--budget", "16", "--local", "2", "--block", "16")
    dense = told(capsys, *words, "--selector", "dense", "--runtime", "resident")
    model = load_model(folder)
    assert model.tokenizer is not None
    ids = model.tokenizer.prompt("The quick brown fox jumps over it. " * 3)
    assert dense["prompt_tokens"] == len(ids)
    assert (ids[0] == 256) == (family in ("llama", "minicpm")), "a begin token where the checkpoint wants one"
    for token in dense["tokens"]:
        assert token == int(model.decoder.dense_forward(torch.tensor([ids]))[0, -1].argmax())
        ids.append(token)
    # a budget of every block: each selector must see what dense attention sees
    for method in (
        ("query", "--runtime", "offload-sync", "--prefill", "selector"),
        ("infinigen", "--runtime", "offload-prefetch", "--selector-option", "channels=4"),
    ):
        assert told(capsys, *words, "--selector", *method)["tokens"] == dense["tokens"]


def test_the_blocks_of_the_checkpoint_are_the_defaults_and_give_way_to_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "m", "minicpm")
    tensors = {name: torch.randn(16, 32) for name in (OWN_KEY, *map(following_key, range(3)))}
    torch.save({"model_state_dict": tensors}, tmp_path / "ckpt.pt")
    words = ("--model", str(folder), "--forecast", str(tmp_path / "ckpt.pt"), "--max-new-tokens", "3")
    spec = told(capsys, *words)["spec"]
    assert spec == {"block": 16, "window": 8, "stride": 4, "sink": 1, "local": 2, "budget": 6}
    assert told(capsys, *words, "--budget", "5")["spec"] == spec | {"budget": 5}
    plain = write(tmp_path / "q", "qwen3")
    found = told(capsys, "--model", str(plain), "--selector", "query", "--runtime", "resident")
    assert found["spec"] == {"block": 64, "window": 32, "stride": 16, "sink": 1, "local": 3, "budget": 16}
