"""The decoder's parts of one decode step on a GPU: fixed buffers, in-place residuals, no allocation.

What `Decoder` is for any number of tokens on any device, this is for one token in each of B places. A step may be
captured once and replayed: the same kernels run on the same memory whatever the data.
"""

from __future__ import annotations

import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.gpu import rotate, rotate_append
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.early import AT_END, early_of
from sparda_core.kernels.gate.gpu import silu_gate
from sparda_core.kernels.norm.gpu import rms_norm
from sparda_core.kernels.norm.gpu_heads import norm_heads
from sparda_core.kernels.step.gpu import embed_tokens
from sparda_core.kernels.token_bias.gpu import keep_bias
from sparda_core.models.decoder import Decoder
from sparda_core.shapes import BlockSpec

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class DeviceDecoder:
    """A decoder's weights, and buffers for up to `places` rows. `parts` gives the functions of a step.

    cos, sin  float32 [tokens, D], as the kernels take them
    """

    def __init__(
        self, decoder: Decoder, places: int, *, tokens: int | None = None, early: int = AT_END
    ) -> None:
        """Allocate for `places` rows of at most `tokens` tokens (None: the model's context).

        early   how early small kernels start (kernels/early.py); same results

        raises  ConfigError for a device or a dtype that kernels cannot take.
        """
        require_device(weights=decoder.table_weights[0])
        if decoder.dtype not in _DTYPES:
            raise ConfigError(f"dtype={decoder.dtype} must be one of {', '.join(map(str, _DTYPES))} on a GPU")
        self.decoder, self.shape, self.places = decoder, decoder.shape, places
        self.early = early_of(decoder.device, early)
        decoder.rotary.grow(tokens or self.shape.context)
        self.cos, self.sin = decoder.rotary.cos, decoder.rotary.sin
        shape, heads = self.shape, [self.heads(layer).total for layer in range(self.shape.layers)]
        self._proxies: dict[int, torch.Tensor] = {}
        self._buffers = {
            "x": self._room(shape.hidden),
            "x_norm": self._room(shape.hidden),
            "mlp_norm": self._room(shape.hidden),
            "proj": self._room(max(heads) * shape.head_dim),
            "query": self._room(shape.q_heads, shape.head_dim),
            **{name: self._room(shape.kv_heads, shape.head_dim) for name in ("key", "value", "next", "own")},
            "gate_up": self._room(2 * shape.ffn),
            "gated": self._room(shape.ffn),
            "head": self._room(shape.vocab),
        }
        if decoder.dtype != torch.float32:
            self._buffers["logits"] = self._room(shape.vocab, dtype=torch.float32)

    def heads(self, layer: int) -> FusedHeads:
        """How the fused product of `layer` lies."""
        w = self.decoder.layer_weights(layer)
        return FusedHeads(q=self.shape.q_heads, kv=self.shape.kv_heads, has_next=w.has_next, has_own=w.has_own)

    @property
    def used_bytes(self) -> int:
        """Device memory of the buffers; weights and rotary tables left out."""
        rooms = (*self._buffers.values(), *self._proxies.values())
        return sum(room.numel() * room.element_size() for room in rooms)

    def parts(self, position: torch.Tensor) -> DeviceParts:
        """The parts of a step of the first B places; position int32 [B], read at every call of a part.

        Parts of different B share memory: one step at a time.
        """
        return DeviceParts(self, position)

    def proxy(self, layer: int) -> torch.Tensor:
        """[2, places, Hq, D], where `query_of` leaves its product and its result; made at the first call."""
        if layer not in self._proxies:
            self._proxies[layer] = self._room(2, self.shape.q_heads, self.shape.head_dim).transpose(0, 1).contiguous()
        return self._proxies[layer]

    def view(self, name: str, batch: int, width: int | None = None) -> torch.Tensor:
        """The first `batch` rows of a buffer; with a width, [batch, width] at its beginning."""
        room = self._buffers[name]
        return room[:batch] if width is None else room.view(-1)[: batch * width].view(batch, width)

    def _room(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.zeros(self.places, *size, dtype=dtype or self.decoder.dtype, device=self.decoder.device)


class DeviceParts:
    """One step's parts for B places. Whatever a part returns is a view of a buffer: the next call may write it.

    x              [B, hidden], the residual stream; zero in inactive places
    query          [B, Hq, D], of the layer that was rotated last; so are
    key, value     [B, Hk, D]
    forecast_next  [B, Hk, D], of the layer `lead` after that one
    forecast_own   [B, Hk, D]
    logits         float32 [B, vocab]
    """

    def __init__(self, model: DeviceDecoder, position: torch.Tensor) -> None:
        (batch,) = position.shape
        if not 0 < batch <= model.places:
            raise ConfigError(f"position has {batch} places, must be 1 to places={model.places}")
        self._model, self._decoder, self._config = model, model.decoder, model.decoder.config
        self.position, self._batch = position, batch
        self.x, self.query = model.view("x", batch), model.view("query", batch)
        self.key, self.value = model.view("key", batch), model.view("value", batch)
        self.forecast_next, self.forecast_own = model.view("next", batch), model.view("own", batch)
        self._narrow = model.view("head", batch)
        self.logits = self._narrow if self._decoder.dtype == torch.float32 else model.view("logits", batch)
        self._x_norm, self._mlp_norm = model.view("x_norm", batch), model.view("mlp_norm", batch)

    def embed(self, token: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [B] -> x; ids of inactive places are not looked at."""
        embedding = self._decoder.table_weights[0]
        embed_tokens(
            token, self.position, embedding, self.x, scale=self._config.embed_scale, early=self._model.early
        )
        return self.x

    def project(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x -> its input norm [B, hidden] and the fused product [B, F] with biases and norms of heads, not rotated."""
        w = self._decoder.layer_weights(layer)
        rms_norm(self.x, w.input_norm, self._x_norm, eps=self._config.norm_eps, early=self._model.early)
        proj = self._model.view("proj", self._batch, w.fused.shape[0])
        _product(self._x_norm, w.fused, w.bias, proj)
        if w.qk_norm is not None:
            norm_heads(proj, w.qk_norm, eps=self._config.norm_eps, early=self._model.early)
        return self._x_norm, proj

    def rotate_append(
        self, layer: int, *, entries: torch.Tensor, ring: torch.Tensor, spec: BlockSpec, store: Store | None
    ) -> None:
        """What `project` left -> query, key, value, Forecasts; ring, entries and store of `layer` (see the kernel)."""
        heads = self._model.heads(layer)
        rotate_append(
            self._model.view("proj", self._batch, heads.total * self._model.shape.head_dim),
            heads=heads, cos=self._model.cos, sin=self._model.sin, position=self.position, query=self.query,
            forecast_next=self.forecast_next if heads.has_next else None,
            forecast_own=self.forecast_own if heads.has_own else None,
            key=self.key, value=self.value, entries=entries, ring=ring, spec=spec, store=store,
            early=self._model.early,
        )  # fmt: skip

    def keep_bias(self, layer: int, *, tokens: torch.Tensor, means: torch.Tensor, spec: BlockSpec) -> None:
        """What `rotate_append` left in `value` -> the token's bias, and the mean that it completes (see the kernel)."""
        bias = self._decoder.layer_weights(layer).token_bias
        assert bias is not None, "this model has no token bias"
        keep_bias(
            self.value, bias.scale, bias.delta, self.position, tokens=tokens, means=means, spec=spec,
            early=self._model.early,
        )  # fmt: skip

    def output(self, layer: int, attention: torch.Tensor) -> torch.Tensor:
        """x += output projection of the attention result [B, Hq, D]; returns x."""
        shape = self._model.shape
        require_shape(attention, "attention", B=self._batch, Hq=shape.q_heads, D=shape.head_dim)
        return self._add(attention.flatten(1), self._decoder.layer_weights(layer).output)

    def mlp(self, layer: int) -> torch.Tensor:
        """x += gated feed-forward of the normed x; returns x."""
        w = self._decoder.layer_weights(layer)
        gate_up, gated = self._model.view("gate_up", self._batch), self._model.view("gated", self._batch)
        rms_norm(self.x, w.mlp_norm, self._mlp_norm, eps=self._config.norm_eps, early=self._model.early)
        torch.mm(self._mlp_norm, w.gate_up.t(), out=gate_up)
        silu_gate(gate_up, gated, early=self._model.early)
        return self._add(gated, w.down)

    def head(self) -> torch.Tensor:
        """Final norm and logits of x -> float32 [B, vocab]. The product is rounded to the model's dtype first."""
        _, weight, norm = self._decoder.table_weights
        rms_norm(self.x, norm, self._mlp_norm, eps=self._config.norm_eps, early=self._model.early)
        torch.mm(self._mlp_norm, weight.t(), out=self._narrow)
        if self.logits is not self._narrow:
            self.logits.copy_(self._narrow)
        return self.logits if self._config.logit_scale == 1 else self.logits.mul_(self._config.logit_scale)

    def query_of(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """Query of `layer`'s own projection and rotary on a normed input [B, hidden] -> [B, Hq, D].

        Fed with an earlier layer's x_norm this is InfiniGen's proxy query. Each layer has a buffer of its own.
        """
        both = self._model.proxy(layer)
        product, query = both[0, : self._batch].flatten(1), both[1, : self._batch]
        w, rows = self._decoder.layer_weights(layer), product.shape[1]
        _product(x, self._decoder.query_weight(layer), None if w.bias is None else w.bias[:rows], product)
        if w.qk_norm is not None:
            query_norm = w.qk_norm[: self._model.shape.q_heads]
            norm_heads(product, query_norm, eps=self._config.norm_eps, early=self._model.early)
        rotate(
            product, cos=self._model.cos, sin=self._model.sin, position=self.position, query=query,
            early=self._model.early,
        )  # fmt: skip
        return query

    def _add(self, branch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Residual: in place, so that the product's own epilogue adds and nothing is copied."""
        self.x.addmm_(branch, weight.t(), alpha=self._config.residual_scale)
        return self.x


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """x [B, in] times weight [rows, in], and the bias [rows] in the same launch, into out [B, rows]."""
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
