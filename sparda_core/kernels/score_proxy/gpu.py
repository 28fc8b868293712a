"""Scoring with a proxy query over partial keys on a GPU, and the projection that makes both partial."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.pool.gpu import pooled_dots
from sparda_core.kernels.score_proxy.reference import TOKEN_SPILL
from sparda_core.shapes import BlockSpec


def proxy_block_scores(
    query: torch.Tensor, partial: torch.Tensor, position: torch.Tensor, spec: BlockSpec, unseen: int, scale: float,
    out: torch.Tensor, *, early: int = AT_END,
) -> None:  # fmt: skip
    """See `score_proxy.reference.proxy_block_scores`, for one query a row; one launch.

    query     [B, Hq, w]; each group's are added up first, since the sum of their logits is the logit of their sum
    partial   [B, Hk, N, w]; undefined beyond position + 1 - unseen tokens
    position  int32 [B]; -1: nothing is written for the place
    unseen    newest tokens whose partial keys are not there yet
    out       float32 [B, Hk, M], written up to each row's current block and no further
    early     see `pool.gpu.pooled_dots`
    Products and sums in float32. Raises ConfigError on what does not fit.
    """
    pooled_dots(
        query, partial, position, out, block=spec.block, window=1, stride=1, spill=TOKEN_SPILL, unseen=unseen,
        scale=scale, early=early,
    )  # fmt: skip


def project_query(
    query: torch.Tensor, projection: torch.Tensor, position: torch.Tensor, out: torch.Tensor, *, early: int = AT_END
) -> None:
    """Each group's summed query in the kept channels; one launch.

    query       [B, Hq, D], post-RoPE
    projection  [B, Hk, D, w], each place's own
    position    int32 [B]; -1: nothing is written for the place
    out         float32 [B, Hk, w]
    early       see `kernels.early`; position must not be the previous kernel's doing
    """
    require_shape(out, "out", B=query.shape[0], Hk=projection.shape[1], w=projection.shape[3])
    _project(query, projection, position, out, (out.stride(0), out.stride(1), 0), early)


def project_keys(
    key: torch.Tensor, projection: torch.Tensor, position: torch.Tensor, partial: torch.Tensor, *, early: int = AT_END
) -> None:
    """Append the new tokens' keys in the kept channels: partial[b, h, position[b]]; one launch.

    key         [B, Hk, D], post-RoPE
    projection  [B, Hk, D, w], each place's own
    position    int32 [B], less than N; -1: nothing is written for the place
    partial     [B, Hk, N, w], written at each row's position and nowhere else
    early       see `project_query`
    """
    require_shape(key, "key", B=None, Hk=partial.shape[1], D=projection.shape[2])
    require_shape(partial, "partial", B=key.shape[0], Hk=None, N=None, w=projection.shape[3])
    strides = partial.stride()
    _project(key, projection, position, partial, (strides[0], strides[1], strides[2]), early)


def _project(
    vectors: torch.Tensor, projection: torch.Tensor, position: torch.Tensor, out: torch.Tensor,
    out_strides: tuple[int, int, int], early: int,
) -> None:  # fmt: skip
    places, heads, width, channels = projection.shape
    require_shape(vectors, "vectors", B=places, H=None, D=width)
    require_shape(position, "position", B=places)
    if vectors.shape[1] % heads:
        raise ConfigError(f"{vectors.shape[1]} heads are not a multiple of kv_heads={heads}")
    for name, tensor in (("vectors", vectors), ("projection", projection), ("out", out)):
        if tensor.stride(-1) != 1:
            raise ConfigError(f"the last axis of {name} has stride {tensor.stride(-1)}; it must be contiguous")
    require_device(vectors=vectors, projection=projection, position=position, out=out)
    group = vectors.shape[1] // heads
    _project_kernel[(places * heads,)](
        vectors, projection, position, out, vectors.stride(0), vectors.stride(1), *projection.stride()[:3],
        *out_strides, HEADS=heads, GROUP=group, GROUP_PAD=padded(group), WIDTH=width, WIDTH_PAD=padded(width),
        CHANNELS=channels, CHANNELS_PAD=padded(channels), num_warps=4,
        **launch_early(early),
    )  # fmt: skip


@triton.jit
def _project_kernel(
    vectors, projection, position, out, vectors_b, vectors_h, projection_b, projection_h, projection_d,
    out_b, out_h, out_n, HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr, CHANNELS: tl.constexpr, CHANNELS_PAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(0) // HEADS).to(tl.int64)
    i_h = (tl.program_id(0) % HEADS).to(tl.int64)
    at = tl.load(position + i_b).to(tl.int64)
    wait_for_kernel_ahead(EARLY)
    if at >= 0:
        o_g = tl.arange(0, GROUP_PAD)
        o_d = tl.arange(0, WIDTH_PAD)
        o_w = tl.arange(0, CHANNELS_PAD)
        m_d = o_d < WIDTH
        m_w = o_w < CHANNELS
        p_vectors = vectors + i_b * vectors_b + (i_h * GROUP + o_g)[:, None] * vectors_h + o_d[None, :]
        b_vector = tl.load(p_vectors, mask=(o_g < GROUP)[:, None] & m_d[None, :], other=0.0)
        b_vector = tl.sum(b_vector.to(tl.float32), axis=0)  # [WIDTH_PAD]
        p_projection = projection + i_b * projection_b + i_h * projection_h
        p_projection += o_d.to(tl.int64)[:, None] * projection_d + o_w[None, :]
        b_projection = tl.load(p_projection, mask=m_d[:, None] & m_w[None, :], other=0.0).to(tl.float32)
        b_out = tl.sum(b_vector[:, None] * b_projection, axis=0)  # [CHANNELS_PAD]
        p_out = out + i_b * out_b + i_h * out_h + at * out_n + o_w
        tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_w)
