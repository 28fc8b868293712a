"""Our decoder: a Llama-type stack whose attention has four projections, Q, K, V and Forecast.

The parts are small functions on the residual stream x [B, T, hidden]; attention itself is the
caller's, since where K and V live is a runtime's business. They run once per layer and token, so
each is a handful of tensor operations, and the four projections are one matrix product.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.kernels.attend_dense.fold import fold_bias
from sparda_core.models.config import DecoderConfig
from sparda_core.models.forecast_weights import ForecastWeights, check_forecast
from sparda_core.models.rotary import RotaryTable, Rotation
from sparda_core.models.token_bias import BiasWeights, bias_weights, token_bias
from sparda_core.models.weights import EMBED, FINAL_NORM, HEAD, check_shapes, expected_tensors, layer_key
from sparda_core.shapes import ModelShape

if TYPE_CHECKING:
    from sparda_core.models.device_decoder import DeviceDecoder


@attrs.frozen(eq=False)
class Projections:
    """What one layer derives from its input; all but x_norm and v carry rotary positions.

    x_norm         [B, T, hidden]   the input after the layer's input norm
    q              [B, Hq, T, D]
    k, v           [B, Hk, T, D]
    forecast_next  [B, Hk, T, D]    Forecast of layer + lead; None on the last `lead` layers or without a Forecast
    forecast_own   [B, Hk, T, D]    Forecast of this layer; the first `lead` layers only, else None
    bias           [B, Hk, T]       token bias (models/token_bias.py), float32 at least; None where the model has none
    Head tensors are strided views of one product: call .contiguous() where that matters.
    """

    x_norm: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    forecast_next: torch.Tensor | None = None
    forecast_own: torch.Tensor | None = None
    bias: torch.Tensor | None = None


Visit = Callable[[int, Projections], None]


@attrs.frozen(eq=False)
class LayerWeights:
    """One layer's matrices [out, in] and norms [hidden], laid out for speed; read only.

    fused    rows [q | k | forecast_next? | forecast_own? | v]: what is rotated lies together
    bias     [rows of fused], zero at a Forecast's; None where the model has none
    qk_norm  [Hq + Hk, D], the norm's weight of every query and key head; None where heads have no norm
    gate_up  rows [gate | up]
    """

    fused: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    bias: torch.Tensor | None = None
    qk_norm: torch.Tensor | None = None
    has_next: bool = False
    has_own: bool = False
    token_bias: BiasWeights | None = None


def _layer(weights: Mapping[str, torch.Tensor], layer: int, config: DecoderConfig) -> LayerWeights:
    def part(name: str, kind: str = "weight") -> torch.Tensor:
        return weights[layer_key(layer, name, kind)]

    heads = {"q": config.shape.q_heads, "k": config.shape.kv_heads}
    return LayerWeights(
        bias=torch.cat([part(f"self_attn.{name}_proj", "bias") for name in "qkv"]) if config.shape.qkv_bias else None,
        qk_norm=(
            torch.cat([part(f"self_attn.{name}_norm").expand(count, -1) for name, count in heads.items()])
            if config.shape.qk_norm
            else None
        ),
        fused=torch.cat([part(f"self_attn.{name}_proj") for name in "qkv"]),
        output=part("self_attn.o_proj").contiguous(),
        gate_up=torch.cat((part("mlp.gate_proj"), part("mlp.up_proj"))),
        down=part("mlp.down_proj").contiguous(),
        input_norm=part("input_layernorm"),
        mlp_norm=part("post_attention_layernorm"),
        token_bias=bias_weights(weights, layer) if config.shape.token_bias else None,
    )


def _with_rows(layer: LayerWeights, shape: ModelShape, extra: Mapping[str, torch.Tensor | None]) -> LayerWeights:
    """The same layer with these Forecast rows between k and v, instead of any it had."""
    kv_rows = shape.kv_heads * shape.head_dim
    qk_rows = shape.q_heads * shape.head_dim + kv_rows
    rows = [w.to(layer.fused.device, layer.fused.dtype) for w in extra.values() if w is not None]
    if not rows and len(layer.fused) == qk_rows + kv_rows:
        return attrs.evolve(layer, has_next=False, has_own=False)  # as it was: nothing to copy
    bias = layer.bias
    if bias is not None:
        bias = torch.cat((bias[:qk_rows], *(bias.new_zeros(len(w)) for w in rows), bias[-kv_rows:]))
    return attrs.evolve(
        layer,
        fused=torch.cat((layer.fused[:qk_rows], *rows, layer.fused[-kv_rows:])),
        bias=bias,
        has_next=extra["next"] is not None,
        has_own=extra["own"] is not None,
    )


class Decoder:
    """Weights laid out for speed, and the parts of a layer as functions. Holds no sequence state."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        forecast: ForecastWeights | None = None,
        source: str = "weights",
    ) -> None:
        """Take tensors by their checkpoint names (models/weights.py), all of one dtype and device.

        raises  WeightsError listing every tensor that is missing or has the wrong shape.
        """
        shape = config.shape
        expected = expected_tensors(config)
        check_shapes(weights, expected, source=source, hint="use a complete checkpoint of this shape")
        if forecast is not None:
            check_forecast(forecast, shape)
        self.config, self.shape = config, shape
        self.forecast = forecast
        self._embed = weights[EMBED]
        self._head = self._embed if shape.tied_embeddings else weights[HEAD]
        self._norm = weights[FINAL_NORM]
        # Layer by layer, so that of weights which are read as they are asked for one layer is held twice, not all.
        self._layers = [self._with_forecast(i, _layer(weights, i, config), forecast) for i in range(shape.layers)]
        self.dtype, self.device = self._embed.dtype, self._embed.device
        self.rotary = RotaryTable(
            head_dim=shape.head_dim,
            theta=config.rope_theta,
            length=min(shape.context, 8192) if self.device.type == "cpu" else shape.context,
            dtype=self.dtype,
            device=self.device,
            scaling=config.rope_scaling,
        )

    @property
    def has_forecast(self) -> bool:
        """Whether `project` fills forecast_next and forecast_own."""
        return self.forecast is not None

    @property
    def forecast_lead(self) -> int | None:
        """Layers between forecasting and attending; None without a Forecast."""
        return None if self.forecast is None else self.forecast.lead

    def with_forecast(self, forecast: ForecastWeights | None) -> Decoder:
        """The same model with other Forecast weights, or none; all else is shared with this one.

        raises  WeightsError if the projections do not fit the shape.
        """
        if forecast is not None:
            check_forecast(forecast, self.shape)
        other = copy.copy(self)
        other.forecast = forecast
        other._layers = [self._with_forecast(i, layer, forecast) for i, layer in enumerate(self._layers)]  # noqa: SLF001
        return other

    def _with_forecast(self, i: int, layer: LayerWeights, forecast: ForecastWeights | None) -> LayerWeights:
        following = forecast.following[i] if forecast and i + forecast.lead < self.shape.layers else None
        own = forecast.by_target[i] if forecast and i < forecast.lead else None
        return _with_rows(layer, self.shape, {"next": following, "own": own})

    def on_device(self, places: int, *, tokens: int, early: int = 0) -> DeviceDecoder:
        """The same weights as the parts of a decode step on a GPU, for `places` rows of at most `tokens` tokens.

        early  see kernels/early.py
        """
        from sparda_core.models.device_decoder import DeviceDecoder

        return DeviceDecoder(self, places, tokens=tokens, early=early)

    def rotation(self, positions_BT: torch.Tensor) -> Rotation:
        """Look up positions, int [B, T], once; `project` and `query_of` take the result in their place."""
        return self.rotary.at(positions_BT)

    def embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Token ids, int [B, T] -> residual stream x [B, T, hidden]."""
        x = F.embedding(ids_BT, self._embed)
        return x if self.config.embed_scale == 1 else x * self.config.embed_scale

    def project(self, layer: int, x: torch.Tensor, positions: torch.Tensor | Rotation) -> Projections:
        """Input norm, all projections of `layer` in one product, rotary.

        x          [B, T, hidden], read only
        positions  absolute, int [B, T], or their Rotation
        """
        w, shape = self._layers[layer], self.shape
        turn = positions if isinstance(positions, Rotation) else self.rotary.at(positions)
        x_norm = self._rms(x, w.input_norm)
        flat = F.linear(x_norm, w.fused, w.bias)
        heads = flat.view(*flat.shape[:2], -1, shape.head_dim)
        if w.qk_norm is not None:
            normed = len(w.qk_norm)
            heads = torch.cat((self._head_norm(heads[:, :, :normed], w.qk_norm), heads[:, :, normed:]), dim=2)
        rotated = heads.shape[2] - shape.kv_heads
        turned = turn.apply(heads[:, :, :rotated]).transpose(1, 2)
        at = shape.q_heads + shape.kv_heads
        following = own = None
        if w.has_next:
            following = turned[:, at : at + shape.kv_heads]
            at += shape.kv_heads
        if w.has_own:
            own = turned[:, at : at + shape.kv_heads]
        v = heads[:, :, rotated:].transpose(1, 2)
        return Projections(
            x_norm=x_norm,
            q=turned[:, : shape.q_heads],
            k=turned[:, shape.q_heads : shape.q_heads + shape.kv_heads],
            v=v,
            forecast_next=following,
            forecast_own=own,
            bias=None if w.token_bias is None else token_bias(w.token_bias, v),
        )

    def query_of(self, layer: int, x_norm: torch.Tensor, positions: torch.Tensor | Rotation) -> torch.Tensor:
        """`layer`'s own query projection and rotary on any normed input [B, T, hidden] -> q [B, Hq, T, D].

        Fed with an earlier layer's x_norm this is InfiniGen's proxy query. An input wider than the weights is not
        narrowed: they are widened.
        """
        turn = positions if isinstance(positions, Rotation) else self.rotary.at(positions)
        w, heads, kind = self._layers[layer], self.shape.q_heads, x_norm.dtype
        bias = None if w.bias is None else w.bias[: heads * self.shape.head_dim].to(kind)
        flat = F.linear(x_norm, self.query_weight(layer).to(kind), bias)
        query = flat.view(*flat.shape[:2], heads, self.shape.head_dim)
        if w.qk_norm is not None:
            query = self._head_norm(query, w.qk_norm[:heads].to(kind))
        return turn.apply(query).transpose(1, 2)

    def query_weight(self, layer: int) -> torch.Tensor:
        """Query rows of `layer`, [Hq * D, hidden], a read-only view; bias and norm of heads, if any, are not in it."""
        return self._layers[layer].fused[: self.shape.q_heads * self.shape.head_dim]

    def layer_weights(self, layer: int) -> LayerWeights:
        """All weights of `layer`."""
        return self._layers[layer]

    @property
    def table_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embedding and head, both [vocab, hidden], and the final norm [hidden]; read only."""
        return self._embed, self._head, self._norm

    def output(self, layer: int, x: torch.Tensor, attn_BHqTD: torch.Tensor) -> torch.Tensor:
        """x + output projection of the attention result [B, Hq, T, D] -> [B, T, hidden]."""
        return self._add(x, attn_BHqTD.transpose(1, 2).flatten(2), self._layers[layer].output)

    def mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x + gated feed-forward of the normed x -> [B, T, hidden]."""
        w = self._layers[layer]
        gate, up = F.linear(self._rms(x, w.mlp_norm), w.gate_up).chunk(2, dim=-1)
        return self._add(x, F.silu(gate).mul_(up), w.down)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Final norm and logits: x [..., hidden] -> [..., vocab]. Pass only the positions wanted."""
        logits = F.linear(self._rms(x, self._norm), self._head)
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale

    def dense_forward(self, ids_BT: torch.Tensor, *, visit: Visit | None = None, logits: str = "all") -> torch.Tensor:
        """Plain causal forward from position 0: the reference for every sparse path.

        ids_BT  int [B, T]
        visit   called as visit(layer, projections) with each layer's tensors, before its attention
        logits  "all" -> [B, T, vocab]; "last" -> [B, 1, vocab]; "none" -> the residual stream
                [B, T, hidden] before the final norm
        """
        if logits not in ("all", "last", "none"):
            raise ValueError(f"logits={logits!r} must be 'all', 'last' or 'none'")
        batch, length = ids_BT.shape
        positions_BT = torch.arange(length, device=ids_BT.device).expand(batch, length)
        turn = self.rotation(positions_BT)
        x = self.embed(ids_BT)
        for layer in range(self.shape.layers):
            p = self.project(layer, x, turn)
            if visit is not None:
                visit(layer, p)
            x = self.mlp(layer, self.output(layer, x, _causal_attention(p, self.shape.group)))
        if logits == "none":
            return x
        return self.head(x if logits == "all" else x[:, -1:])

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)
        # narrow dtypes: normalise in float32, round, then scale, in the order the checkpoints were trained with
        return F.rms_norm(x.float(), weight.shape, None, self.config.norm_eps).to(x.dtype) * weight

    def _head_norm(self, x_BTHD: torch.Tensor, weight_HD: torch.Tensor) -> torch.Tensor:
        wide = x_BTHD if x_BTHD.dtype in (torch.float32, torch.float64) else x_BTHD.float()
        return F.rms_norm(wide, wide.shape[-1:], None, self.config.norm_eps).to(x_BTHD.dtype) * weight_HD

    def _add(self, x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        out = torch.addmm(rows, branch.flatten(0, 1), weight.t(), alpha=self.config.residual_scale)
        return out.view_as(x)


def _causal_attention(p: Projections, group: int) -> torch.Tensor:
    with_bias = fold_bias(p.q, p.k, p.v, p.bias)
    k, v = (t.repeat_interleave(group, dim=1) for t in (with_bias.keys, with_bias.values))
    return with_bias.cut(F.scaled_dot_product_attention(with_bias.query, k, v, is_causal=True, scale=with_bias.scale))
