"""Decode attention on a GPU: one query token a row over its blocks, read where they lie. Kernels: `gpu_pieces`."""

from __future__ import annotations

import attrs
import torch

from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError
from sparda_core.kernels.attend.gpu_pieces import ALL, PAGES, SLOTS, attend_kernel, join_kernel
from sparda_core.kernels.attend.occupancy import Sms
from sparda_core.kernels.attend.splitting import Tuning, cut_lists, most_parts
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device, sm_count, sm_shared_bytes
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec

#: Values that one program of the second launch adds up: 32 a thread, all on their way at once.
_JOIN_TILE = 4096


@attrs.frozen(kw_only=True, eq=False)
class AttendScratch:
    """Partial results of attention, for every layer of one stream in turn.

    mixed    float32 [parts * G * D], weighted values of each piece
    stats    float32 [parts * 2 * G], its largest logit (base 2) and the sum of its weights
    arrived  int32 [places * Hk], pieces finished; 0 between launches
    early    whether a second launch begins before the first has ended (kernels/early.py)
    """

    mixed: torch.Tensor
    stats: torch.Tensor
    arrived: torch.Tensor
    sms: Sms
    tuning: Tuning
    early: bool


def attend_scratch(
    *, places: int, q_heads: int, kv_heads: int, head_dim: int, blocks: int, block: int, dtype: torch.dtype,
    device: torch.device, tuning: Tuning | None = None,
) -> AttendScratch:  # fmt: skip
    """Memory for `attend_*` over up to `places` rows and lists of up to `blocks` blocks. The only allocation."""
    tuning, group = tuning or Tuning(), q_heads // kv_heads
    sms = Sms(count=sm_count(device), shared_bytes=sm_shared_bytes(device))
    parts = most_parts(
        places * kv_heads, blocks, block=block, head_dim=head_dim, value_bytes=dtype.itemsize, sms=sms, tuning=tuning
    )
    return AttendScratch(
        mixed=torch.empty(parts * group * head_dim, dtype=torch.float32, device=device),
        stats=torch.empty(parts * 2 * group, dtype=torch.float32, device=device),
        arrived=torch.zeros(places * kv_heads, dtype=torch.int32, device=device),
        sms=sms, tuning=tuning, early=tuning.early and _starts_early(device),
    )  # fmt: skip


def attend_slots(
    q: torch.Tensor, slots_array: torch.Tensor, physical: torch.Tensor, counts: torch.Tensor,
    position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch, *, early: int = 0,
    bias: torch.Tensor | None = None, logical: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Attention of each row's token over the blocks in its slots.

    q            [B, Hq, D]; head h belongs to KV head h // G
    slots_array  [n, 2, block, D], K then V, dtype of q; what lies beyond the visible tokens may be anything
    physical     int32 [B, Hk, W], index into slots_array of each selected block, in the order of the selection
    counts       int32 [B, Hk], blocks selected. The last is the row's current one and shows position % block + 1
                 tokens, all others are full
    position     int32 [B]; -1: no row here, its output is 0
    out          [B, Hq, D], written; scale 1 / sqrt(D), accumulated in float32
    scratch      of `attend_scratch`; launches that share it must be on one stream
    early        above 0: takes its places before the kernel ahead has ended, and waits for it (kernels/early.py).
                 Not behind a wait for another stream, nor if that kernel sets `position`
    bias         float32 [B, Hk, N], added to the scaled logit of each logical token; None: nothing
    logical      int32 [B, Hk, W], logical ids of the blocks in `physical`; wanted with a bias, which lies by token
    Strides are free but for the last axis, which is contiguous. No host synchronisation, no allocation.
    Raises ConfigError on shapes, dtypes or devices that do not fit.
    """
    require_shape(physical, "physical", B=q.shape[0], Hk=None, W=None)
    if bias is not None:
        if logical is None:
            raise ConfigError("a bias lies by logical token: give the logical ids of the blocks, too")
        require_shape(logical, "logical", B=q.shape[0], Hk=physical.shape[1], W=physical.shape[2])
    _launch(
        q, slots_array, physical, counts, None, position, spec, out, scratch, early, blocks=physical.shape[2], page=1,
        bias=bias, logical=logical,
    )  # fmt: skip


def attend_pages(
    q: torch.Tensor, paged: Paged, choice: Choice, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor,
    scratch: AttendScratch, *, early: int = 0, bias: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """The same over logical blocks of a resident layer, found through its page table. See `attend_slots`.

    A block selected must have its page.
    """
    require_shape(choice.blocks, "choice.blocks", B=q.shape[0], Hk=None, W=None)
    _launch(
        q, paged.array, choice.blocks, choice.counts, paged.table, position, spec, out, scratch, early,
        blocks=choice.blocks.shape[2], page=paged.page_blocks, bias=bias, logical=choice.blocks,
    )  # fmt: skip


def attend_all(
    q: torch.Tensor, paged: Paged, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch,
    *, early: int = 0, bias: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """The same over every block of a row, up to its current one. See `attend_slots`."""
    _launch(
        q, paged.array, None, None, paged.table, position, spec, out, scratch, early,
        blocks=paged.table.shape[2] * paged.page_blocks, page=paged.page_blocks, bias=bias,
    )  # fmt: skip


def _launch(
    q: torch.Tensor, array: torch.Tensor, blocks_list: torch.Tensor | None, counts: torch.Tensor | None,
    table: torch.Tensor | None, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch,
    early: int, *, blocks: int, page: int, bias: torch.Tensor | None = None, logical: torch.Tensor | None = None,
) -> None:  # fmt: skip
    heads = _check(q, array, blocks_list, counts, table, position, spec, out)
    _check_bias(bias, logical, q, heads)
    batch, q_heads, width = q.shape
    if batch == 0:
        return
    pairs, group, wide = batch * heads, q_heads // heads, padded(width, 16)
    tuning = scratch.tuning
    cut = cut_lists(
        pairs, blocks, block=spec.block, group=group, head_dim=width, value_bytes=q.element_size(), sms=scratch.sms,
        tuning=tuning,
    )  # fmt: skip
    splits, parts = cut.splits, pairs * cut.splits * group
    if splits > 1 and (
        parts * 2 > scratch.stats.numel() or parts * width > scratch.mixed.numel() or pairs > scratch.arrived.numel()
    ):
        raise ConfigError(
            f"scratch was made for less than {batch} rows of {blocks} blocks ({pairs} x {splits} pieces): "
            "pass the most places and blocks to attend_scratch"
        )
    find = ALL if blocks_list is None else SLOTS if table is None else PAGES
    # A tile waits for its block's id, that of a paged layer for its page too: each is a step of the pipeline.
    stages = 1 + cut.depth * (3 if table is not None and blocks_list is not None else 2)
    # Places that are never looked at.
    ids, by_row, rooms, biases, named = (
        t if t is not None else position for t in (blocks_list, counts, table, bias, logical)
    )
    attend_kernel[(pairs, splits)](
        q, array, ids, by_row, rooms, position, biases, named, out, scratch.mixed, scratch.stats, scratch.arrived,
        splits, width**-0.5 * 1.4426950408889634,  # weights are powers of two
        q.stride(0), q.stride(1), *array.stride()[:3], *_two(blocks_list), *_two(counts), *_two(table), *_two(bias),
        *_two(logical),
        out.stride(0), out.stride(1),
        HEADS=heads, G=group, GP=padded(group, 16), D=width, DP=wide, BLOCK=spec.block, PAGE=page, TOKENS=cut.tokens,
        JOIN=cut.join, FIND=find, PRECISION="ieee", STAGES=stages, EARLY=early > 0,
        TELL=scratch.early and not cut.join, BIAS=bias is not None,
        num_warps=cut.warps,
        **_launched(early > 0),
    )  # fmt: skip
    if not cut.join:
        rows = padded(splits, 16)
        values = min(padded(width), max(16, _JOIN_TILE // rows))
        join_kernel[(batch * q_heads, -(-width // values))](
            scratch.mixed, scratch.stats, out, splits, out.stride(0), out.stride(1),
            HEADS=heads, G=group, D=width, SP=rows, DT=values, EARLY=scratch.early, num_warps=4,
            **_launched(scratch.early),
        )  # fmt: skip


def _launched(early: bool) -> dict[str, bool]:  # noqa: FBT001
    """What Triton's launcher is told."""
    return {"launch_pdl": True} if early else {}


def _starts_early(device: torch.device) -> bool:
    """Whether a kernel may be launched before the one ahead has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _two(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Strides of a table's rows and heads."""
    return (0, 0) if tensor is None else (tensor.stride(0), tensor.stride(1))


def _check_bias(bias: torch.Tensor | None, logical: torch.Tensor | None, q: torch.Tensor, heads: int) -> None:
    """Raise ConfigError on a bias that does not fit the rows and heads."""
    if bias is None:
        return
    require_device(q=q, bias=bias, logical=logical)
    require_shape(bias, "bias", B=q.shape[0], Hk=heads, N=None)
    if bias.dtype != torch.float32 or bias.stride(-1) != 1:
        raise ConfigError(f"bias is {bias.dtype} with strides {bias.stride()}; want float32, its last axis contiguous")
    if logical is not None and (logical.dtype != torch.int32 or logical.stride(-1) != 1):
        raise ConfigError(f"logical is {logical.dtype}; want int32, its last axis contiguous")


def _check(
    q: torch.Tensor, array: torch.Tensor, blocks_list: torch.Tensor | None, counts: torch.Tensor | None,
    table: torch.Tensor | None, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor,
) -> int:  # fmt: skip
    """KV heads; raises ConfigError on what would make the kernel read elsewhere than it should."""
    require_device(q=q, array=array, blocks=blocks_list, counts=counts, table=table, position=position, out=out)
    batch, q_heads, width = q.shape
    lists = blocks_list if blocks_list is not None else table
    assert lists is not None
    heads = lists.shape[1]
    if heads < 1 or q_heads % heads:
        raise ConfigError(f"q has {q_heads} heads, not a multiple of the {heads} KV heads")
    require_shape(array, "array", n=None, KV=2, block=spec.block, D=width)
    require_shape(out, "out", B=batch, Hq=q_heads, D=width)
    require_shape(position, "position", B=batch)
    if counts is not None:
        require_shape(counts, "counts", B=batch, Hk=heads)
    if table is not None:
        require_shape(table, "table", B=batch, Hk=heads, P=None)
    if not q.dtype == array.dtype == out.dtype or q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ConfigError(f"q ({q.dtype}), array ({array.dtype}) and out ({out.dtype}) must be of one float dtype")
    for name, tensor in {"blocks": blocks_list, "counts": counts, "table": table, "position": position}.items():
        if tensor is not None and tensor.dtype != torch.int32:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; want int32")
    for name, tensor in {"q": q, "array": array, "out": out, "blocks": blocks_list, "table": table}.items():
        if tensor is not None and tensor.stride(-1) != 1:
            raise ConfigError(f"the last axis of {name} must be contiguous")
    return heads
