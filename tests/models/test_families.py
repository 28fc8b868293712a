"""Every family and every rule for rotary positions against the transformers package, with a cache and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.models.load import load_model
from tests.models.cached import decode_with_cache
from tests.models.theirs import in_chunks, save, tiny, whole

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

THETA = {"rope_theta": 500.0}
SHORT, LONG = [1.0, 1.1, 1.3, 1.6], [1.5, 2.5, 4.0, 7.0]
#: Rules for rotary positions; 64 tokens is the context of the files, 32 the original one where a rule has another.
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn with all options": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 0.5,
        "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False,
    },
    "yarn of a given magnitude": {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.25,
    },
    "longrope": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32,
    },
    "longrope with a factor": {
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 64,
        "factor": 4.0,
    },
}  # fmt: skip


def tokens(length: int, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(length))


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert float(want.std()) > 0.1
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_a_rule_changes_the_logits_far_more_than_the_tolerance() -> None:
    plain = whole(tiny("llama", rope_parameters=ROPES["default"] | THETA), tokens(100))
    for name, rope in ROPES.items():
        if name != "default":
            other = whole(tiny("llama", rope_parameters=rope | THETA), tokens(100))
            assert float((other - plain).abs().max()) > 0.2, name


@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("length", [20, 100], ids=["within the context", "past it"])
def test_every_rule_gives_their_logits(tmp_path: Path, rope: str, length: int) -> None:
    theirs = tiny("llama", rope_parameters=ROPES[rope] | THETA)
    ours = load_model(save(theirs, tmp_path / "m")).decoder
    ids_BT = tokens(length)
    near(ours.dense_forward(ids_BT), whole(theirs, ids_BT))
    chunks = [length - 5, 1, 1, 1, 1, 1]
    fresh = tiny("llama", rope_parameters=ROPES[rope] | THETA)
    near(decode_with_cache(ours, ids_BT, chunks), in_chunks(fresh, ids_BT, chunks))


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_decoding_over_the_edge_of_the_original_context_gives_their_logits(tmp_path: Path, rope: str) -> None:
    theirs = tiny("llama", rope_parameters=ROPES[rope] | THETA)
    ours = load_model(save(theirs, tmp_path / "m")).decoder
    edge = 64 if rope == "dynamic" else 32
    chunks = [edge - 3, *[1] * 8, 4]
    ids_BT = tokens(sum(chunks))
    near(decode_with_cache(ours, ids_BT, chunks), in_chunks(theirs, ids_BT, chunks))


def test_rows_of_one_batch_do_not_depend_on_each_others_length() -> None:
    from sparda_core.models.rope_scaling import DynamicScaling
    from sparda_core.models.rotary import RotaryTable

    table = RotaryTable(
        head_dim=8, theta=500.0, length=16, dtype=torch.float64, device="cpu",
        scaling=DynamicScaling(factor=2.0, original=8),
    )  # fmt: skip
    short, long = torch.arange(6)[None], torch.arange(6)[None] + 20
    both = table.at(torch.cat((short, long)))
    torch.testing.assert_close(both.cos[:1], table.at(short).cos)
    torch.testing.assert_close(both.sin[1:], table.at(long).sin)
    assert not torch.equal(both.cos[:1], table.at(torch.cat((short, short + 6), 1)).cos[:, :6])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_family_gives_their_logits(tmp_path: Path, family: str, *, tied: bool) -> None:
    theirs = tiny(family, tie_word_embeddings=tied, rope_parameters=ROPES["default"] | THETA)
    model = load_model(save(theirs, tmp_path / "m"))
    assert (model.shape.tied_embeddings, model.shape.qkv_bias, model.shape.qk_norm) == (
        tied, family == "qwen2", family == "qwen3",
    )  # fmt: skip
    ids_BT = tokens(50)
    near(model.decoder.dense_forward(ids_BT), whole(theirs, ids_BT))
    chunks = [40, 1, 1, 8]
    near(decode_with_cache(model.decoder, ids_BT, chunks), in_chunks(theirs, ids_BT, chunks))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_yarn_on_a_qwen_gives_their_logits_past_the_context(tmp_path: Path, family: str) -> None:
    theirs = tiny(family, rope_parameters=ROPES["yarn"] | THETA)
    model = load_model(save(theirs, tmp_path / "m"))
    assert model.shape.context == 128
    near(model.decoder.dense_forward(tokens(120)), whole(theirs, tokens(120)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shards_and_narrow_dtypes_load_as_they_are_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = tiny("qwen3", rope_parameters=ROPES["default"] | THETA).to(dtype)
    save(theirs, tmp_path / "m", max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 2
    ours = load_model(tmp_path / "m", dtype=dtype).decoder
    assert ours.dtype == dtype
    again = type(theirs).from_pretrained(tmp_path / "m", dtype=torch.float32)
    exact = load_model(tmp_path / "m").decoder
    near(exact.dense_forward(tokens(30)), whole(again, tokens(30)))


def test_a_config_in_the_older_form_means_the_same(tmp_path: Path) -> None:
    theirs = tiny("llama", rope_parameters=ROPES["llama3"] | THETA)
    save(theirs, tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope | {"type": rope.pop("rope_type")}
    file.write_text(json.dumps(config))
    near(load_model(tmp_path / "m").decoder.dense_forward(tokens(90)), whole(theirs, tokens(90)))


def test_every_token_that_ends_a_text_is_known(tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7, 3]}))
    config = load_model(tmp_path / "m").config
    assert (config.eos_id, config.end_ids) == (7, (7, 9, 3))
