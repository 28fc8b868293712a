"""The bias of a new token on a GPU, and the mean that the token completes. One launch, a program a (row, KV head)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.strides import require_contiguous_rows
from sparda_core.shapes import BlockSpec


@triton.jit
def _keep_bias_kernel(
    value, s_value, t_value, scale, delta, s_delta, position, tokens, s_tokens, t_tokens, means, s_means, t_means,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    WINDOW: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    here = tl.load(position + row)
    o_h, o_d = tl.arange(0, HEADS_PAD), tl.arange(0, DP)
    m_hd = (o_h < HEADS)[:, None] & (o_d < D)[None, :]
    b_delta = tl.load(delta + head * s_delta + o_h[:, None] * D + o_d[None, :], mask=m_hd, other=0.0).to(tl.float32)
    b_scale = tl.load(scale + head).to(tl.float32)
    wait_for_kernel_ahead(EARLY)
    if here >= 0:
        p_value = value + row * s_value + o_h[:, None] * t_value + o_d[None, :]
        x = tl.sum(tl.sum(tl.load(p_value, mask=m_hd, other=0.0).to(tl.float32) * b_delta, axis=1), axis=0)
        # log(1 + e^x), without e^x where that overflows
        bias = b_scale * (tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))
        tokens += row * s_tokens + head * t_tokens
        tl.store(tokens + here, bias)
        first = here + 1 - WINDOW
        if (first >= 0) & (first % STRIDE == 0):
            # The new one is taken from its register: what this program has just written may not be readable yet.
            o_w = tl.arange(0, WIDE)
            older = tl.sum(tl.load(tokens + first + o_w, mask=o_w < WINDOW - 1, other=0.0), axis=0)
            tl.store(means + row * s_means + head * t_means + first // STRIDE, (older + bias) / WINDOW)


def grid(batch: int, heads: int) -> tuple[int, int]:
    """Programs of one `keep_bias`."""
    return batch, heads


def keep_bias(
    value: torch.Tensor, scale: torch.Tensor, delta: torch.Tensor, position: torch.Tensor, *, tokens: torch.Tensor,
    means: torch.Tensor, spec: BlockSpec, early: int = AT_END,
) -> None:  # fmt: skip
    """bias[h] = scale[h] * softplus(delta[h] . value of all heads), in float32, and what it completes.

    value     [B, Hk, D], of each place's new token
    scale     [Hk]; delta [Hk, Hk * D]: the layer's weights, any float dtype
    position  int32 [B]; -1: nothing is written
    tokens    float32 [B, Hk, N], written at `position`; what lies before it must be there
    means     float32 [B, Hk, C]; mean c is written by the token that completes entry c
    early     see `kernels.early`; position must not be the previous kernel's doing
    Leading strides are free, last axes contiguous. Raises ConfigError on what does not fit.
    """
    batch, heads, width = value.shape
    require_shape(scale, "scale", Hk=heads)
    require_shape(delta, "delta", Hk=heads, values=heads * width)
    require_shape(position, "position", B=batch)
    require_shape(tokens, "tokens", B=batch, Hk=heads, N=None)
    require_shape(means, "means", B=batch, Hk=heads, C=None)
    for name, tensor in (("tokens", tokens), ("means", means)):
        if tensor.dtype != torch.float32:
            raise ConfigError(f"{name} is {tensor.dtype}; want float32")
    require_device(value=value, scale=scale, delta=delta, position=position, tokens=tokens, means=means)
    require_contiguous_rows(value=value, delta=delta, position=position, tokens=tokens, means=means)
    _keep_bias_kernel[grid(batch, heads)](
        value, *value.stride()[:2], scale, delta, delta.stride(0), position, tokens, *tokens.stride()[:2],
        means, *means.stride()[:2],
        HEADS=heads, HEADS_PAD=padded(heads), D=width, DP=padded(width), WINDOW=spec.window, WIDE=padded(spec.window),
        STRIDE=spec.stride, num_warps=1, **launch_early(early),
    )  # fmt: skip
