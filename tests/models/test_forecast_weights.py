"""The Forecast file: what goes in comes out, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparda_core.errors import WeightsError
from sparda_core.models.forecast_weights import (
    OWN_KEY,
    ForecastWeights,
    following_key,
    load_forecast,
    own_key,
    query_mean,
    save_forecast,
)
from sparda_core.models.load import SHIPPED_FORECAST, load_model
from sparda_core.models.tiny import TINY_SHAPE, random_forecast
from sparda_core.shapes import ModelShape


def saved(path: Path) -> ForecastWeights:
    forecast = random_forecast(TINY_SHAPE, seed=4, dtype=torch.float32)
    save_forecast(path, forecast, dtype=torch.float32)
    return forecast


def test_a_saved_forecast_comes_back_with_its_metadata(tmp_path: Path) -> None:
    want = saved(tmp_path / "new" / "forecast.safetensors")
    got = load_forecast(tmp_path / "new" / "forecast.safetensors", TINY_SHAPE)
    assert torch.equal(got.own, want.own)
    assert all(torch.equal(a, b) for a, b in zip(got.following, want.following, strict=True))
    assert got.metadata == {"init": "random", "seed": 4}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["forecast.safetensors"]


def test_every_missing_projection_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "forecast.safetensors"
    saved(path)
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if k == following_key(0)}, path)
    with pytest.raises(WeightsError, match=r"q_curr_proj.*layers\.1.*q_future_proj.*sparda train.*'query'"):
        load_forecast(path, TINY_SHAPE)
    save_file(tensors | {OWN_KEY: tensors[OWN_KEY][:3].clone()}, path)
    with pytest.raises(WeightsError, match=r"wrong shape.*sparda train"):
        load_forecast(path, TINY_SHAPE)


def test_a_projection_of_the_last_layer_is_allowed_and_ignored(tmp_path: Path) -> None:
    path = tmp_path / "forecast.safetensors"
    saved(path)
    save_file(load_file(path) | {following_key(TINY_SHAPE.layers - 1): torch.zeros(16, 32)}, path)
    assert len(load_forecast(path, TINY_SHAPE).following) == TINY_SHAPE.layers - 1


def test_a_longer_lead_comes_back_from_its_metadata_with_an_own_projection_for_each_of_the_first_layers(
    tmp_path: Path,
) -> None:
    path, want = tmp_path / "two.safetensors", random_forecast(TINY_SHAPE, seed=4, dtype=torch.float32, lead=2)
    save_forecast(path, want, dtype=torch.float32)
    assert set(load_file(path)) == {own_key(0), own_key(1), following_key(0)}
    got = load_forecast(path, TINY_SHAPE)
    assert got.lead == got.metadata["lead"] == 2
    assert all(torch.equal(a, b) for a, b in zip(got.by_target, want.by_target, strict=True))
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if k != own_key(1)}, path, {"sparda": '{"lead": 2}'})
    with pytest.raises(WeightsError, match=r"missing \(model\.layers\.1\.self_attn\.q_curr_proj\.weight\); train"):
        load_forecast(path, TINY_SHAPE)


@pytest.mark.parametrize("lead", ["0", "3", "2.0", "true", '"2"', "null"])
def test_a_lead_that_no_layer_can_have_is_refused(tmp_path: Path, lead: str) -> None:
    path = tmp_path / "forecast.safetensors"
    saved(path)
    save_file(load_file(path), path, {"sparda": f'{{"lead": {lead}}}'})
    with pytest.raises(WeightsError, match=r"lead=.*must be an integer from 1 to 2 for layers=3"):
        load_forecast(path, TINY_SHAPE)


def test_a_file_of_another_lead_than_its_metadata_says_is_refused_and_not_read_as_something_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "forecast.safetensors"
    save_forecast(path, random_forecast(TINY_SHAPE, seed=4, dtype=torch.float32, lead=2))
    save_file(load_file(path), path)
    with pytest.raises(WeightsError, match=r"lead=1.*it holds model\.layers\.1\.self_attn\.q_curr_proj"):
        load_forecast(path, TINY_SHAPE)
    saved(path)
    save_file(load_file(path), path, {"sparda": '{"lead": 2}'})
    with pytest.raises(WeightsError, match=r"1 tensors are missing \(model\.layers\.1\.self_attn\.q_curr_proj"):
        load_forecast(path, TINY_SHAPE)


def test_absent_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "forecast.safetensors"
    with pytest.raises(WeightsError, match="does not exist; train one"):
        load_forecast(path, TINY_SHAPE)
    saved(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(WeightsError, match="cannot be read"):
        load_forecast(path, TINY_SHAPE)
    other = ModelShape(name="other", layers=3, hidden=32, ffn=8, q_heads=4, kv_heads=1, head_dim=8, vocab=9, context=9)
    saved(path)
    with pytest.raises(WeightsError, match="wrong shape"):
        load_forecast(path, other)


def test_the_query_mean_averages_the_heads_of_one_group_and_no_others() -> None:
    rows = torch.full((TINY_SHAPE.q_heads * TINY_SHAPE.head_dim, TINY_SHAPE.hidden), float("nan"))
    for head in range(TINY_SHAPE.q_heads):
        for d in range(TINY_SHAPE.head_dim):
            rows[head * TINY_SHAPE.head_dim + d] = 10.0**head + d
    mean = query_mean(rows, TINY_SHAPE)
    assert mean.shape == (16, 32)
    assert mean[:8, 0].tolist() == [5.5 + d for d in range(8)]
    assert mean[8:, 0].tolist() == [550.0 + d for d in range(8)]


@pytest.mark.model
def test_the_shipped_forecast_fits_the_real_model_and_says_how_it_was_made() -> None:
    decoder = load_model("smollm2").decoder
    assert SHIPPED_FORECAST.exists()
    assert decoder.forecast is not None
    assert {"base_model", "block_spec", "objective", "steps", "seed", "data_sha256", "command"} <= set(
        decoder.forecast.metadata
    )
