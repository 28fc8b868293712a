"""One copy kernel for all layers of a step: it keeps its multiprocessors and moves each list as soon as it is whole.

A copy launched layer by layer waits each time for an event, for a launch and for multiprocessors that are wholly
free. This one is launched once and waits for numbers in device memory: the diff of a layer counts `ARRIVED` up when
its programs have written their part of the list, the copy counts `DONE` up when its thread blocks have moved theirs,
and a kernel of one warp, `await_layer`, holds the compute stream until then.

Why nobody waits for ever:
- The copy waits for diffs alone. On the compute stream a diff may lie behind `await_layer` of *earlier* layers, never
  behind its own. So the least layer that is not done can always go on: its diff waits for nothing that is not done.
- A thread block of the copy that is not resident yet needs a multiprocessor that is free. Whatever runs on the compute
  stream ends by itself, but for `await_layer`, of which one runs at a time and takes one warp of one multiprocessor;
  the thread blocks are fewer than the multiprocessors (checked). So it is late at most, as a copy per layer would be.
- Steps do not mix: `begin_step` zeroes the signals before the copy is launched, and the step ends after the copy has.
- Both streams must have been handed to the device before either waits: inside one CUDA graph they are. Issued by the
  host one by one they are not: loading a kernel, or freeing memory, in between may wait for the device, and the device
  for the diff that comes next. Tools that run one kernel at a time cannot run this one either.
What never comes ends the kernel by a trap after some seconds, as an error of the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import INTERPRETED, require_device, sm_count
from sparda_core.kernels.gather.gpu import block_words, check_copy, copy_list, copy_options
from sparda_core.kernels.gather.runs import check_ctas
from sparda_core.kernels.quantise.gpu import require_host
from sparda_core.kernels.tables import ARRIVED, COUNT, DONE, SIGNALS, LayerLists

_COUNT, _ARRIVED, _DONE, _SIGNALS = (tl.constexpr(at) for at in (COUNT, ARRIVED, DONE, SIGNALS))
_MOST_LOOKS = tl.constexpr(1 << 23)  # each takes about a microsecond


@triton.jit
def _until(signal, wanted):
    """Wait until what others count up has reached `wanted`, and see all that they wrote before. The answer's way from
    the L2 cache is pause enough between two looks.
    """
    looks = 0
    while (tl.atomic_add(signal, 0, sem="acquire", scope="gpu") < wanted) & (looks < _MOST_LOOKS):
        looks += 1
    if looks == _MOST_LOOKS:
        tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=r,r", [looks], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _ready(signals, programs, most):
    """Blocks of a layer's list, once it is whole."""
    _until(signals + _ARRIVED, programs)
    return tl.minimum(tl.load(signals + _COUNT, cache_modifier=".cg"), most)


@triton.jit
def _tell(signals):
    """One program's blocks of a layer are there, all threads' of them."""
    tl.debug_barrier()
    tl.atomic_add(signals + _DONE, 1, sem="release", scope="gpu")


@triton.jit(do_not_specialize=["layers", "programs"])
def _copy_kernel(
    source, target, scales, source_ids, target_ids, signals, layers, programs, most,
    s_source, s_target, l_target, l_ids,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    HALVES: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    for layer in range(layers):
        own, i_l = signals + layer * _SIGNALS, tl.cast(layer, tl.int64)
        blocks = _ready(own, programs, most)
        copy_list(
            source, target + i_l * l_target, scales, source_ids + i_l * l_ids, target_ids + i_l * l_ids, blocks,
            s_source, s_target, WORDS, RUN, PER, ROWS, PARTS, HALVES, LOADS, STORES, NATIVE,
        )  # fmt: skip
        _tell(own)


@triton.jit(do_not_specialize=["layer", "ctas"])
def _await_kernel(signals, layer, ctas):
    _until(signals + layer * _SIGNALS + _DONE, ctas)


def copy_layers(
    source: torch.Tensor, lists: LayerLists, *, programs: int, layers: int | None = None, ctas: int = 2,
    in_flight_bytes: int = 128 * 2**10, scales: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Move the lists of all layers, one after the other, each when `programs` programs of its diff have arrived.

    source    [m, 2, block, D], blocks of all layers, as in `gather_blocks`; scales likewise
    programs  of each diff: rows times KV heads
    layers    how many of the first layers; None: all. With 0 nothing is copied, but the kernel is loaded: do that
              before a capture
    ctas, in_flight_bytes  as in `gather_blocks`, but fewer thread blocks than the device has multiprocessors

    For a CUDA graph only, on a stream beside that of the diffs: see the module. Raises ConfigError as `gather_blocks`.
    """
    target, signals = lists.target, lists.signals
    device = require_device(
        target=target, source_ids=lists.source_ids, target_ids=lists.target_ids, signals=signals, scales=scales
    )
    check_lists(source, lists, scales)
    require_host(source, "source", device)
    check_ctas(ctas)
    if not INTERPRETED and ctas >= sm_count(device):
        raise ConfigError(
            f"ctas={ctas} must be below the {sm_count(device)} multiprocessors of the device where one launch copies "
            "for all layers: each thread block waits on one; choose copy_launch='layer'"
        )
    words, slots = block_words(source), target
    if scales is None:
        slots = block_words(target.flatten(0, 1)).view(*target.shape[:2], -1)
    _copy_kernel[(ctas,)](
        words, slots, words if scales is None else scales, lists.source_ids, lists.target_ids, signals,
        target.shape[0] if layers is None else layers, programs, lists.source_ids.shape[1],
        words.stride(0), slots.stride(1), slots.stride(0), lists.source_ids.stride(0),
        **copy_options(source, target, in_flight_bytes),
    )  # fmt: skip


def await_layer(lists: LayerLists, layer: int, *, ctas: int) -> None:
    """Hold the current stream until `ctas` thread blocks have moved all of a layer's list; layer counts from the first
    offloaded one. With ctas=0 it waits for nothing. One launch of one warp.
    """
    _await_kernel[(1,)](lists.signals, layer, ctas, num_warps=1)


def check_lists(source: torch.Tensor, lists: LayerLists, scales: torch.Tensor | None) -> None:
    """Raise ConfigError where the lists do not fit each other or the source."""
    layers, most = lists.source_ids.shape
    require_shape(lists.target, "target", L=layers, n=None, KV=2, block=source.shape[2], D=source.shape[3])
    require_shape(lists.target_ids, "target_ids", L=layers, most=most)
    require_shape(lists.signals, "signals", L=layers, signals=SIGNALS)
    ids = {"source_ids": lists.source_ids, "target_ids": lists.target_ids}
    if not lists.target.is_contiguous() or len({tensor.stride(0) for tensor in ids.values()}) != 1:
        raise ConfigError("target must be contiguous, source_ids and target_ids of the same strides")
    if lists.signals.dtype != torch.int32 or not lists.signals.is_contiguous():
        raise ConfigError(f"signals ({lists.signals.dtype}) must be int32 and contiguous")
    for at in range(min(layers, 1)):
        count = lists.signals[at, COUNT : COUNT + 1]
        check_copy(source, lists.target[at], lists.source_ids[at], lists.target_ids[at], count, scales)
