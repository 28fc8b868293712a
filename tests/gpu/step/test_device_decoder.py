"""The parts of a step with fixed buffers compute what the decoder computes."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.store import Store
from sparda_core.kernels.early import AS_IT_ENDS, AS_IT_RUNS, AT_END, early_of, launch_early
from sparda_core.kernels.tables import Paged
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.device_decoder import DeviceDecoder, DeviceParts
from sparda_core.models.rope_scaling import DynamicScaling, LongRopeScaling
from sparda_core.models.synthetic import DrawnWeights, synthetic_model
from sparda_core.models.tiny import TINY_SHAPE
from sparda_core.shapes import BlockSpec
from tests.gpu.append.worlds import TOLERANCE, nan
from tests.gpu_env import DEVICE, DTYPES

SPEC = BlockSpec(block=8, window=4, stride=4, local=1, budget=4)
SCALED = DecoderConfig(shape=TINY_SHAPE, embed_scale=3.0, residual_scale=0.7, logit_scale=0.25)
#: What families have beyond a Llama; rotary rules that depend on the length of the text change within 31 tokens.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"shape": attrs.evolve(TINY_SHAPE, qkv_bias=True)},
    "qwen3": {"shape": attrs.evolve(TINY_SHAPE, qk_norm=True)},
    "both": {"shape": attrs.evolve(TINY_SHAPE, qkv_bias=True, qk_norm=True)},
    "dynamic": {"rope_scaling": DynamicScaling(factor=3.0, original=16)},
    "longrope": {
        "rope_scaling": LongRopeScaling(
            short=(1.0, 1.1, 1.3, 1.6), long=(1.5, 2.5, 4.0, 7.0), original=16, attention=1.2
        )
    },
}
L, KV, D = TINY_SHAPE.layers, TINY_SHAPE.kv_heads, TINY_SHAPE.head_dim


def decoder(dtype: torch.dtype = torch.float32, config: DecoderConfig = SCALED, *, forecast: bool = True) -> Decoder:
    return synthetic_model(TINY_SHAPE, device=DEVICE, dtype=dtype, seed=3, config=config, forecast=forecast).decoder


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    error = float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-12))
    assert error <= 4 * TOLERANCE[dtype], f"relative error {error:.1e}"


def room(places: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries and ring of one layer."""
    return nan(places, KV, 20, D, dtype=torch.float32), nan(places, KV, SPEC.window, D, dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "forecast"), [*((dtype, True) for dtype in DTYPES), (torch.float32, False)])
def test_every_part_gives_what_the_decoders_gives(dtype: torch.dtype, family: str, *, forecast: bool) -> None:
    model = decoder(dtype, attrs.evolve(SCALED, **FAMILIES[family]), forecast=forecast)
    here = [30, -1, 0, 7]
    where = torch.tensor(here, device=DEVICE)
    parts = DeviceDecoder(model, 6, tokens=64).parts(where.int())
    active = where >= 0
    token = torch.tensor([5, 2**50, 96, 0], device=DEVICE)
    x = model.embed(token.clamp_max(96)[:, None])
    near(parts.embed(token)[active], x[active, 0], dtype)
    turn = where.clamp_min(0)[:, None]
    for layer in range(L):
        p = model.project(layer, x, turn)
        near(parts.project(layer)[0][active], p.x_norm[active, 0], dtype)
        parts.rotate_append(layer, entries=room(4)[0], ring=room(4)[1], spec=SPEC, store=None)
        pairs = [(parts.query, p.q), (parts.key, p.k), (parts.value, p.v)]
        assert (p.forecast_next is not None) == (forecast and layer < L - 1)
        pairs += [] if p.forecast_next is None else [(parts.forecast_next, p.forecast_next)]
        pairs += [] if p.forecast_own is None else [(parts.forecast_own, p.forecast_own)]
        for got, want in pairs:
            near(got[active], want[active, :, 0], dtype)
            assert not got[~active].any()
        proxy = model.query_of((layer + 1) % L, p.x_norm, turn)
        near(parts.query_of((layer + 1) % L, p.x_norm[:, 0])[active], proxy[active, :, 0], dtype)
        attention = torch.randn_like(parts.query) * active[:, None, None]
        x = model.output(layer, x, attention[:, :, None])
        near(parts.output(layer, attention)[active], x[active, 0], dtype)
        x = model.mlp(layer, x)
        near(parts.mlp(layer)[active], x[active, 0], dtype)
    logits = parts.head()
    assert logits.dtype == torch.float32
    near(logits[active], model.head(x)[active, 0], dtype)
    assert not parts.x[~active].any()
    assert not logits[~active].any()


def attention_of(parts: DeviceParts, pages: Paged, here: int) -> torch.Tensor:
    """Dense attention of a batch of one to what lies in its pages."""
    blocks = pages.array[pages.table[0, :, : here // SPEC.block + 1].long()]
    keys, values = (blocks[:, :, i].flatten(1, 2)[:, : here + 1] for i in range(2))
    group = TINY_SHAPE.group
    scores = torch.einsum("hd,hnd->hn", parts.query[0], keys.repeat_interleave(group, 0)) / math.sqrt(D)
    return torch.einsum("hn,hnd->hd", scores.softmax(-1), values.repeat_interleave(group, 0))[None]


@pytest.mark.parametrize("family", ["llama", "both"])
def test_a_sequence_decoded_in_pages_has_the_logits_of_the_dense_forward(family: str) -> None:
    model, length = decoder(config=attrs.evolve(SCALED, **FAMILIES[family])), 10
    ids = torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    position = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    parts = DeviceDecoder(model, 1).parts(position)
    table = torch.arange(KV * 3, dtype=torch.int32, device=DEVICE).view(1, KV, 3)
    arrays = nan(L, KV * 3, 2, SPEC.block, D, dtype=torch.float32)
    tiers = [(*room(1), Paged(array=array, table=table, page_blocks=1)) for array in arrays]
    found = []
    for here in range(length):
        position.fill_(here)
        parts.embed(ids[:, here])
        for layer, (entries, ring, pages) in enumerate(tiers):
            parts.project(layer)
            parts.rotate_append(layer, entries=entries, ring=ring, spec=SPEC, store=Store(device=pages))
            parts.output(layer, attention_of(parts, pages, here))
            parts.mlp(layer)
        found.append(parts.head().clone())
    near(torch.stack(found, 1), model.dense_forward(ids), torch.float32)


def test_a_part_leaves_the_places_behind_its_batch_alone() -> None:
    model = DeviceDecoder(decoder(), 4)
    wide = model.parts(torch.tensor([3, 4, 5, 6], dtype=torch.int32, device=DEVICE))
    wide.embed(torch.tensor([1, 2, 3, 4], device=DEVICE))
    before = wide.x[2:].clone()
    narrow = model.parts(torch.tensor([8, 9], dtype=torch.int32, device=DEVICE))
    narrow.embed(torch.tensor([7, 8], device=DEVICE))
    narrow.project(0)
    narrow.rotate_append(0, entries=room(2)[0], ring=room(2)[1], spec=SPEC, store=None)
    narrow.output(0, narrow.query)
    narrow.mlp(0)
    narrow.head()
    assert torch.equal(wide.x[2:], before)


def test_launching_early_changes_no_value() -> None:
    model, logits = decoder(torch.float16), []
    for early in {AT_END, min(AS_IT_ENDS, early_of(DEVICE, None)), early_of(DEVICE, None)}:
        device = DeviceDecoder(model, 2, early=early)
        parts = device.parts(torch.tensor([9, 2], dtype=torch.int32, device=DEVICE))
        parts.embed(torch.tensor([1, 2], device=DEVICE))
        for layer in range(L):
            parts.project(layer)
            parts.rotate_append(layer, entries=room(2)[0], ring=room(2)[1], spec=SPEC, store=None)
            parts.output(layer, parts.query)
            parts.mlp(layer)
        logits.append(parts.head())
    assert all(torch.equal(one, logits[0]) for one in logits)


def test_where_kernels_cannot_start_early_nobody_asks_them_to() -> None:
    cpu = torch.device("cpu")
    assert early_of(cpu, None) == early_of(cpu, AT_END) == AT_END
    with pytest.raises(ConfigError, match="compute capability"):
        early_of(cpu, AS_IT_RUNS)
    for wrong in (3, -1, True):
        with pytest.raises(ConfigError, match=f"early={wrong} must be 0, 1 or 2"):
            early_of(cpu, wrong)
    assert launch_early(AT_END) == {"EARLY": 0}
    assert launch_early(AS_IT_RUNS) == {"EARLY": 2, "launch_pdl": True}


def test_buffers_do_not_move_and_their_bytes_are_known() -> None:
    model = DeviceDecoder(decoder(torch.float16), 3)
    parts = model.parts(torch.zeros(3, dtype=torch.int32, device=DEVICE))
    token = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    first = parts.embed(token).data_ptr(), parts.head().data_ptr(), parts.query_of(1, parts.x).data_ptr()
    again = parts.embed(token).data_ptr(), parts.head().data_ptr(), parts.query_of(1, parts.x).data_ptr()
    assert first == again
    values = 3 * 32 + 2 * (4 + 4 * 2) * 8 + 3 * 48 + 97 + 2 * 4 * 8
    assert model.used_bytes == 3 * (2 * values + 4 * 97)


def test_drawn_weights_are_the_same_every_time_and_keep_activations_finite() -> None:
    weights = DrawnWeights(TINY_SHAPE, 7, torch.float32, DEVICE)
    assert len(weights) == len(list(weights)) == len(weights.sizes)
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(weights[name], weights[name])
    assert 0.8 < float(weights[name].std()) * math.sqrt(48) < 1.2
    assert not torch.equal(weights[name], attrs.evolve(weights, seed=8)[name])
    logits = decoder(torch.float16).dense_forward(torch.arange(40, device=DEVICE)[None])
    assert bool(logits.isfinite().all())


def test_what_kernels_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dtype=torch.float64 must be one of torch.float32"):
        DeviceDecoder(decoder(torch.float64), 1)
    with pytest.raises(ConfigError, match="position has 3 places, must be 1 to places=2"):
        DeviceDecoder(decoder(), 2).parts(torch.zeros(3, dtype=torch.int32, device=DEVICE))
