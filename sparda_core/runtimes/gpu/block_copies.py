"""Many copies of single blocks from pinned host memory to the device by its copy engine, in one call of the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import LaneError

Ints = npt.NDArray[np.int64]

_LIBRARY = "libcuda.so.1"


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the source is read in stream order; hints about places are not needed for known pointers."""

    _fields_ = (
        ("src_access_order", ctypes.c_int), ("src_type", ctypes.c_int), ("src_id", ctypes.c_int),
        ("dst_type", ctypes.c_int), ("dst_id", ctypes.c_int), ("flags", ctypes.c_uint),
    )  # fmt: skip


_IN_STREAM_ORDER = 1


def copy_blocks(source: torch.Tensor, target: torch.Tensor, source_ids: Ints, target_ids: Ints) -> None:
    """Issue target[target_ids[i]] = source[source_ids[i]] for all i on the current stream; nothing is awaited.

    source  [m, ...] pinned host memory; target [n, ...] on the device: blocks of one size and dtype, contiguous.
    Raises LaneError where the driver refuses. Where `target` is on the CPU too, the blocks are copied at once.
    """
    if target.device.type != "cuda":
        target[torch.from_numpy(target_ids)] = source[torch.from_numpy(source_ids)]
        return
    size = source[0].numel() * source.element_size()
    starts = (np.ascontiguousarray(ids, np.int64) * size for ids in (source_ids, target_ids))
    reads, writes = (base.data_ptr() + at for base, at in zip((source, target), starts, strict=True))
    stream = torch.cuda.current_stream(target.device).cuda_stream
    _batch(writes.astype(np.uint64), reads.astype(np.uint64), size, stream)


def _batch(writes: npt.NDArray[np.uint64], reads: npt.NDArray[np.uint64], size: int, stream: int) -> None:
    library = ctypes.CDLL(_LIBRARY)
    count = writes.size
    if hasattr(library, "cuMemcpyBatchAsync_v2"):
        sizes = np.full(count, size, np.uint64)
        attributes, first = _Attributes(src_access_order=_IN_STREAM_ORDER), ctypes.c_size_t(0)
        _check(
            "cuMemcpyBatchAsync",
            library.cuMemcpyBatchAsync_v2(
                _pointer(writes), _pointer(reads), _pointer(sizes), ctypes.c_size_t(count), ctypes.byref(attributes),
                ctypes.byref(first), ctypes.c_size_t(1), ctypes.c_void_p(stream),
            ),
        )  # fmt: skip
        return
    # A driver before CUDA 13: one call a block.
    for write, read in zip(writes.tolist(), reads.tolist(), strict=True):
        code = library.cuMemcpyHtoDAsync_v2(
            ctypes.c_uint64(write), ctypes.c_void_p(read), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        _check("cuMemcpyHtoDAsync", code)


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _check(call: str, code: int) -> None:
    if code:
        raise LaneError(f"{call} failed with CUDA error {code}: the copy of a layer's missing blocks was not issued")
