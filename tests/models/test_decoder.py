"""The decoder's parts against separate, obvious computations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from sparda_core.errors import WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import OWN_KEY, ForecastWeights
from sparda_core.models.tiny import TINY_SHAPE, random_forecast, random_weights, tiny_model
from sparda_core.models.weights import layer_key
from sparda_core.shapes import ModelShape
from tests.models.cached import decode_with_cache
from tests.profiles import share

SHAPES = st.builds(
    lambda layers, hk, group, d, h: ModelShape(
        name="drawn", layers=layers, hidden=h, ffn=h + 3, q_heads=hk * group, kv_heads=hk, head_dim=2 * d,
        vocab=31, context=64, tied_embeddings=bool(h % 2),
    ),
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(4, 17),
)  # fmt: skip


def rotate_by_hand(x_BHTD: torch.Tensor, positions_BT: torch.Tensor, theta: float) -> torch.Tensor:
    half = x_BHTD.shape[-1] // 2
    out = torch.full_like(x_BHTD, float("nan"))
    for pair in range(half):
        angle = positions_BT[:, None, :].double() * theta ** (-2 * pair / (2 * half))
        first, second = x_BHTD[..., pair], x_BHTD[..., pair + half]
        out[..., pair] = first * angle.cos() - second * angle.sin()
        out[..., pair + half] = second * angle.cos() + first * angle.sin()
    return out


def heads_of(flat_BTR: torch.Tensor, head_dim: int) -> torch.Tensor:
    return flat_BTR.view(*flat_BTR.shape[:2], -1, head_dim).transpose(1, 2)


@settings(max_examples=share(25), deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 99), offset=st.integers(0, 40))
def test_project_equals_separate_products_and_a_rotation_by_hand(shape: ModelShape, seed: int, offset: int) -> None:
    weights = random_weights(shape, seed=seed, dtype=torch.float64)
    lead = 1 + seed % max(1, shape.layers - 1)
    forecast = random_forecast(shape, seed=seed + 1, dtype=torch.float64, lead=lead)
    decoder = Decoder(DecoderConfig(shape=shape), weights, forecast=forecast)
    assert decoder.forecast_lead == lead
    x = torch.randn(2, 5, shape.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    positions_BT = torch.stack((torch.arange(5), torch.arange(5) * 3)) + offset
    for layer in range(shape.layers):
        got = decoder.project(layer, x, positions_BT)
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + decoder.config.norm_eps)
        x_norm = x * scale * weights[layer_key(layer, "input_layernorm")]
        want = {"x_norm": x_norm}
        matrices = {
            "q": weights[layer_key(layer, "self_attn.q_proj")],
            "k": weights[layer_key(layer, "self_attn.k_proj")],
            "forecast_next": forecast.by_target[layer + lead] if layer + lead < shape.layers else None,
            "forecast_own": forecast.by_target[layer] if layer < lead else None,
        }
        for name, matrix in matrices.items():
            if matrix is None:
                assert getattr(got, name) is None
            else:
                flat = heads_of(F.linear(x_norm, matrix), shape.head_dim)
                want[name] = rotate_by_hand(flat, positions_BT, decoder.config.rope_theta)
        want["v"] = heads_of(F.linear(x_norm, weights[layer_key(layer, "self_attn.v_proj")]), shape.head_dim)
        for name, tensor in want.items():
            torch.testing.assert_close(getattr(got, name), tensor, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(decoder.query_of(layer, x_norm, positions_BT), want["q"], rtol=1e-12, atol=1e-12)


def test_decoding_with_position_offsets_equals_one_full_forward() -> None:
    decoder = tiny_model(dtype=torch.float64).decoder
    ids_BT = torch.randint(0, 97, (2, 13), generator=torch.Generator().manual_seed(3))
    whole = decoder.dense_forward(ids_BT)
    for chunks in ([13], [1] * 13, [5, 1, 1, 4, 2]):
        torch.testing.assert_close(decode_with_cache(decoder, ids_BT, chunks), whole, rtol=1e-10, atol=1e-10)


def test_the_three_logit_choices_agree() -> None:
    decoder = tiny_model(dtype=torch.float64).decoder
    ids_BT = torch.arange(7)[None]
    whole = decoder.dense_forward(ids_BT)
    torch.testing.assert_close(decoder.dense_forward(ids_BT, logits="last"), whole[:, -1:])
    torch.testing.assert_close(decoder.head(decoder.dense_forward(ids_BT, logits="none")), whole)


def test_rotary_positions_beyond_the_first_table_are_the_same_as_in_a_large_one() -> None:
    decoder = tiny_model(dtype=torch.float64).decoder
    x = torch.ones(1, 1, TINY_SHAPE.hidden, dtype=torch.float64)
    far = torch.tensor([[TINY_SHAPE.context + 1000]])
    got = decoder.project(0, x, far)
    x_norm = got.x_norm
    flat = heads_of(F.linear(x_norm, decoder.query_weight(0)), TINY_SHAPE.head_dim)
    torch.testing.assert_close(got.q, rotate_by_hand(flat, far, 10000.0), rtol=1e-9, atol=1e-9)


def test_a_forecast_does_not_change_the_logits_and_can_be_taken_off() -> None:
    with_it = tiny_model(dtype=torch.float64).decoder
    without = with_it.with_forecast(None)
    ids_BT = torch.arange(9)[None]
    assert with_it.has_forecast
    assert not without.has_forecast
    torch.testing.assert_close(without.dense_forward(ids_BT), with_it.dense_forward(ids_BT))
    assert without.project(0, without.embed(ids_BT), torch.arange(9)[None]).forecast_next is None


def test_scalings_act_where_they_should() -> None:
    weights = random_weights(TINY_SHAPE, seed=0, dtype=torch.float64)
    plain = Decoder(DecoderConfig(shape=TINY_SHAPE), weights)
    scaled = Decoder(DecoderConfig(shape=TINY_SHAPE, embed_scale=3, residual_scale=0.5, logit_scale=0.25), weights)
    ids_BT = torch.arange(4)[None]
    x = plain.embed(ids_BT)
    torch.testing.assert_close(scaled.embed(ids_BT), 3 * x)
    torch.testing.assert_close(scaled.mlp(1, x) - x, 0.5 * (plain.mlp(1, x) - x))
    attn = torch.randn(1, 4, 4, 8, dtype=torch.float64)
    torch.testing.assert_close(scaled.output(1, x, attn) - x, 0.5 * (plain.output(1, x, attn) - x))
    torch.testing.assert_close(scaled.head(x), 0.25 * plain.head(x))


def test_missing_and_misshaped_tensors_are_all_named() -> None:
    weights = random_weights(TINY_SHAPE, seed=0, dtype=torch.float32)
    gone = {k: w for k, w in weights.items() if k not in ("model.norm.weight", layer_key(2, "mlp.up_proj"))}
    with pytest.raises(WeightsError, match=r"2 tensors are missing.*model\.norm.*layers\.2\.mlp\.up_proj"):
        Decoder(DecoderConfig(shape=TINY_SHAPE), gone)
    weights[layer_key(1, "self_attn.k_proj")] = torch.zeros(3, 3)
    with pytest.raises(WeightsError, match=r"layers\.1\.self_attn\.k_proj\.weight is \(3, 3\), must be \(16, 32\)"):
        Decoder(DecoderConfig(shape=TINY_SHAPE), weights)


def test_a_forecast_of_the_wrong_shape_is_refused_with_the_way_out() -> None:
    good = random_forecast(TINY_SHAPE, seed=0, dtype=torch.float32)
    weights = random_weights(TINY_SHAPE, seed=0, dtype=torch.float32)
    for bad in (
        ForecastWeights(following=good.following[:1], own=good.own),
        ForecastWeights(following=good.following, own=good.own[:-1]),
    ):
        with pytest.raises(WeightsError, match="sparda train"):
            Decoder(DecoderConfig(shape=TINY_SHAPE), weights, forecast=bad)
    assert OWN_KEY.endswith("q_curr_proj.weight")
