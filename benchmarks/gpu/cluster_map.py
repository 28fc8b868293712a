"""Which SMs can hold the thread blocks of one cluster: those of one GPC, told apart by launching clusters."""

# Triton kernels take no annotations, and are told where everything lies.
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sparda_core.kernels.device import INTERPRETED

Row = dict[str, Any]
#: Thread blocks of a cluster; the largest that needs no leave.
SIZES = (2, 8)
_LAUNCHES, _CLUSTERS, _THREADS = 20, 16, 1024


@triton.jit
def _cluster_kernel(out, WIDTH: tl.constexpr):
    # The tile is cut among the thread blocks of the cluster: each writes its own SM into its part.
    at = tl.arange(0, WIDTH)
    sm = tl.inline_asm_elementwise(
        "{ .reg .u32 u; mov.u32 u, $1; mov.u32 $0, %smid; }", "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(out + tl.program_id(0) * WIDTH + at, sm)


def clusters_of(device: torch.device) -> list[Row]:
    """SMs of each of some clusters of each size; none by the interpreter."""
    if INTERPRETED:
        return []
    rows: list[Row] = []
    for size in SIZES:
        width, seen = size * _THREADS, []
        for _ in range(_LAUNCHES):
            out = torch.full((_CLUSTERS, width), -1, dtype=torch.int32, device=device)
            _cluster_kernel[(_CLUSTERS,)](out, WIDTH=width, num_ctas=size, num_warps=_THREADS // 32)
            seen += [sorted(set(one)) for one in out.tolist()]
        rows.append({"size": size, "clusters": seen})
    return rows
