"""Many copies of single blocks from pinned host memory to the device by its copy engine, in few calls of the driver.

The copy engine begins when a call returns, and a call takes as long for each piece as half the piece's way over the
link: so a long list goes in several calls, and the first pieces move while the others are submitted.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import LaneError
from sparda_core.segments import AT_ONCE

Ints = npt.NDArray[np.int64]

_LIBRARY = "libcuda.so.1"


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the source is read in stream order; hints about places are not needed for known pointers."""

    _fields_ = (
        ("src_access_order", ctypes.c_int), ("src_type", ctypes.c_int), ("src_id", ctypes.c_int),
        ("dst_type", ctypes.c_int), ("dst_id", ctypes.c_int), ("flags", ctypes.c_uint),
    )  # fmt: skip


_IN_STREAM_ORDER = 1


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_ids: Ints, target_ids: Ints, *, at_once: int = AT_ONCE
) -> None:
    """Issue target[target_ids[i]] = source[source_ids[i]] for all i on the current stream; nothing is awaited.

    source   [m, ...] pinned host memory; target [n, ...] on the device: blocks of one size and dtype, contiguous.
    at_once  pieces of one call of the driver
    Raises LaneError where the driver refuses. Where `target` is on the CPU too, the blocks are copied at once.
    """
    if target.device.type != "cuda":
        target[torch.from_numpy(target_ids)] = source[torch.from_numpy(source_ids)]
        return
    size = source[0].numel() * source.element_size()
    reads, writes = source_ids * size + source.data_ptr(), target_ids * size + target.data_ptr()
    stream = torch.cuda.current_stream(target.device).cuda_stream
    _driver()(writes, reads, size, stream, at_once)


#: Given addresses to write and to read (int64, contiguous), bytes of each piece, a stream and pieces of one call:
#: issues the copies.
_Issue = Callable[[Ints, Ints, int, int, int], None]
_ADDRESS_BYTES = 8


@functools.cache
def _driver() -> _Issue:
    """What this machine's driver has. Looked up once: loading a library again takes longer than a copy."""
    library = ctypes.CDLL(_LIBRARY)
    if hasattr(library, "cuMemcpyBatchAsync_v2"):
        return _in_batches(library.cuMemcpyBatchAsync_v2)
    return _one_by_one(library.cuMemcpyHtoDAsync_v2)


def _in_batches(call: Any) -> _Issue:
    pointer = ctypes.c_void_p
    call.argtypes = (
        pointer, pointer, pointer, ctypes.c_size_t, pointer, pointer, ctypes.c_size_t, pointer,
    )  # fmt: skip
    attributes = ctypes.byref(_Attributes(src_access_order=_IN_STREAM_ORDER))
    from_first = ctypes.byref(ctypes.c_size_t(0))

    def issue(writes: Ints, reads: Ints, size: int, stream: int, at_once: int) -> None:
        sizes = np.full(min(len(writes), at_once), size, np.uint64)
        # Asked for once: an array's address takes longer than the submission of a piece.
        there, here, each = writes.ctypes.data, reads.ctypes.data, sizes.ctypes.data
        for start in range(0, len(writes), at_once):
            count, skip = min(at_once, len(writes) - start), start * _ADDRESS_BYTES
            code = call(there + skip, here + skip, each, count, attributes, from_first, 1, stream)
            _check("cuMemcpyBatchAsync", code)

    return issue


def _one_by_one(call: Any) -> _Issue:
    """For a driver before CUDA 13."""
    call.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

    def issue(writes: Ints, reads: Ints, size: int, stream: int, at_once: int) -> None:  # noqa: ARG001
        for write, read in zip(writes.tolist(), reads.tolist(), strict=True):
            _check("cuMemcpyHtoDAsync", call(write, read, size, stream))

    return issue


def _check(call: str, code: int) -> None:
    if code:
        raise LaneError(f"{call} failed with CUDA error {code}: the copy of a layer's missing blocks was not issued")
