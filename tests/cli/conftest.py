"""A tiny model on disk, as a checkpoint directory: random weights, one token a byte, Forecast weights beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from sparda_core.cli.main import main
from tests.cli.files import TINY, Files

Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Run a command that must refuse: exit code 2, nothing on stdout, one line on stderr, which is returned."""

    def refuse(*argv: str | Path) -> str:
        assert main([str(word) for word in argv]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("sparda: error: ")
        assert err.count("\n") == 1
        return err

    return refuse


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Written once; nobody may change it."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from sparda_core.models.forecast_weights import save_forecast
    from sparda_core.models.tiny import random_forecast, random_weights

    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    save_file(random_weights(TINY, seed=0, dtype=torch.float32), folder / "model.safetensors")
    config = {
        "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": TINY.layers, "hidden_size": TINY.hidden,
        "intermediate_size": TINY.ffn, "num_attention_heads": TINY.q_heads, "num_key_value_heads": TINY.kv_heads,
        "head_dim": TINY.head_dim, "vocab_size": TINY.vocab, "max_position_embeddings": TINY.context,
        "tie_word_embeddings": TINY.tied_embeddings, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    forecast = folder.parent / "forecast.safetensors"
    save_forecast(forecast, random_forecast(attrs.evolve(TINY, name="tiny"), seed=1, dtype=torch.float32))
    text = folder.parent / "text.txt"
    text.write_text("".join(f"Line {n} of a text, which says that {n} * {n} = {n * n}.\n" for n in range(60)))
    return Files(model=folder, forecast=forecast, text=text)
