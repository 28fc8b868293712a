"""The token bias by its definition, in the decoder and in its dense forward."""

from __future__ import annotations

import math

import attrs
import torch

from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import TINY_SHAPE, random_weights, tiny_model
from sparda_core.models.token_bias import BiasWeights, bias_keys, token_bias
from sparda_core.testing.dense_row import DenseRow

SHAPE = attrs.evolve(TINY_SHAPE, name="biased", token_bias=True)


def test_a_bias_is_what_its_formula_says() -> None:
    weights = BiasWeights(scale=torch.tensor([2.0, -0.5]), delta=torch.tensor([[1.0, 0, 0, -1], [0, 2, 1, 0]]))
    value = torch.tensor([[[[3.0, 1]], [[0.5, 4]]]])  # one token of two heads
    got = token_bias(weights, value)
    assert got.shape == (1, 2, 1)
    want = (2 * math.log1p(math.exp(3 - 4)), -0.5 * math.log1p(math.exp(2 * 1 + 0.5)))
    torch.testing.assert_close(got[0, :, 0], torch.tensor(want))


def test_narrow_values_give_a_wide_bias() -> None:
    weights = BiasWeights(scale=torch.ones(1, dtype=torch.bfloat16), delta=torch.ones(1, 2, dtype=torch.bfloat16))
    assert token_bias(weights, torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_the_dense_forward_adds_the_bias() -> None:
    model = tiny_model(SHAPE, seed=2, dtype=torch.float64)
    row = DenseRow(model.decoder, block=16)
    tokens = [5, 1, 9, 60, 2, 2, 31, 8]
    want = row.append(tokens, [None] * SHAPE.layers)
    torch.testing.assert_close(model.decoder.dense_forward(torch.tensor([tokens]), logits="last")[0, 0], want)


def test_without_its_bias_the_model_is_another() -> None:
    weights = random_weights(SHAPE, seed=2, dtype=torch.float64)
    config = tiny_model(SHAPE, seed=2, dtype=torch.float64).config
    silent = {**weights, **{bias_keys(layer)[0]: torch.zeros(2, dtype=torch.float64) for layer in range(SHAPE.layers)}}
    ids = torch.tensor([[5, 1, 9, 60, 2]])
    with_bias, without = (Decoder(config, given).dense_forward(ids) for given in (weights, silent))
    plain = Decoder(attrs.evolve(config, shape=attrs.evolve(SHAPE, token_bias=False)), weights).dense_forward(ids)
    torch.testing.assert_close(without, plain)
    assert float((with_bias - without).abs().max()) > 1e-2
