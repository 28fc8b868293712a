"""Selection against slots on a GPU, in decode: one launch, one program a (row, KV head).

`where` says for each selected block whether it has a slot, so nothing is searched. A program's threads hand victims
to each other through its own row of `physical`, which is written for good at the end.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sparda_core.device_view import Choice
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.diff.gpu_victims import LAST, LRU, SCORE, victims
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged
from sparda_core.kernels.topk.gpu import check_choice, choose_options, choose_row, choose_warps, require_dtypes
from sparda_core.kernels.topk.gpu_ranking import tile_of
from sparda_core.policy import check_policy
from sparda_core.shapes import BlockSpec

_POLICIES = {"last-selection": LAST.value, "lru": LRU.value, "score": SCORE.value}


@triton.jit
def _diff_row(
    blocks, position, held, used, where, table, scores, tick, base,
    physical, tail, misses, opened, source, target, count, W, S, M,
    BLOCK: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """One (row, head). Every pointer is that of its own row; source, target and count are everybody's."""
    i_w = tl.arange(0, WIDTH)
    block = tl.load(blocks + i_w, mask=i_w < W, other=-1)
    selected = (block >= 0) & (position >= 0)
    chosen = tl.sum(selected.to(tl.int32))
    if chosen == 0:
        tl.store(physical + i_w, -1, mask=i_w < W)
        tl.store(tail, -1)
        tl.store(misses, 0)
        tl.store(opened, 0)
    else:
        slot = tl.load(where + block, mask=selected, other=-1)
        hit = slot >= 0
        missing = selected & (slot < 0)
        absent = missing.to(tl.int32)
        order = tl.cumsum(absent, axis=0) - absent
        own = selected & (block == position // BLOCK) & (position % BLOCK == 0)
        listed = missing & (own == 0)
        moves = tl.sum(listed.to(tl.int32))
        page = tl.load(table + block // PAGE, mask=listed, other=0)

        kept = tl.histogram(tl.where(hit, slot, 0), SLOTS, mask=hit) > 0
        victims(
            kept, tl.sum(absent), held, used, where, scores, physical, position // BLOCK, S, M,
            WIDTH, SLOTS, POLICY,
        )  # fmt: skip
        victim = tl.load(physical + order, mask=missing, other=0)
        old = tl.load(held + victim, mask=missing, other=-1)
        tl.debug_barrier()  # all have read their victims before slots and `physical` change

        place = tl.where(hit, slot, victim)
        tl.store(where + old, -1, mask=missing & (old >= 0))
        tl.store(where + block, victim, mask=missing)
        tl.store(held + victim, block, mask=missing)
        tl.store(used + place, tick, mask=selected)
        at = tl.where(selected, base + place, -1)
        tl.store(physical + i_w, at, mask=i_w < W)
        tl.store(tail + tl.zeros_like(i_w), at, mask=i_w == chosen - 1)
        tl.store(misses, moves)
        tl.store(opened, tl.sum(own.to(tl.int32)))
        # The block that this step's token opens is the last one, so it leaves no gap in the list.
        start = tl.atomic_add(count, moves, sem="relaxed")
        tl.store(source + start + order, page * PAGE + block % PAGE, mask=listed)
        tl.store(target + start + order, at, mask=listed)


@triton.jit
def _diff_kernel(
    scores, scores_b, scores_h, position, blocks, blocks_b, blocks_h, counts, counts_b,
    held, held_b, held_h, used, used_b, used_h, where, where_b, where_h, table, table_b, table_h, tick,
    physical, physical_b, physical_h, tail, tail_b, misses, misses_b, opened, opened_b, source, target, count,
    arrived, W, S, M,
    ARRIVE: tl.constexpr, CHOOSE: tl.constexpr, BLOCK: tl.constexpr, SINK: tl.constexpr, LOCAL: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, POLICY: tl.constexpr,
    BUDGET: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    scores += i_b * scores_b + i_h * scores_h
    blocks += i_b * blocks_b + i_h * blocks_h
    if CHOOSE:
        choose_row(
            scores, blocks, counts + i_b * counts_b + i_h, at, M, BLOCK, SINK, LOCAL, BUDGET, WIDTH, TILE
        )
        tl.debug_barrier()  # the selection is read by other threads than those that wrote it
    pair = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    _diff_row(
        blocks, at, held + i_b * held_b + i_h * held_h, used + i_b * used_b + i_h * used_h,
        where + i_b * where_b + i_h * where_h, table + i_b * table_b + i_h * table_h, scores, tl.load(tick), pair * S,
        physical + i_b * physical_b + i_h * physical_h, tail + i_b * tail_b + i_h, misses + i_b * misses_b + i_h,
        opened + i_b * opened_b + i_h, source, target, count, W, S, M,
        BLOCK, PAGE, WIDTH, SLOTS, POLICY,
    )  # fmt: skip
    if ARRIVE:
        tl.debug_barrier()  # this program's part of the list is written, by all of its threads
        tl.atomic_add(arrived, 1, sem="release", scope="gpu")


def diff_slots(
    choice: Choice, position: torch.Tensor, slots: DeviceSlots, host: Paged, policy: str,
    scores: torch.Tensor | None, tick: torch.Tensor, diff: DeviceDiff, arrived: torch.Tensor | None = None, *,
    early: int = AT_END,
) -> None:  # fmt: skip
    """Give every selected block a slot and list those that must be moved: `diff.reference.diff_slots`, slot for slot.

    choice    a lawful selection; the i-th miss in ascending order takes the i-th victim in the policy's order
    position  int32 [B], absolute; -1 for a place without an active row: none of its slots changes
    slots     changed in place; at least as many as the budget
    host      where a block to be moved is read
    policy    "last-selection", "lru" or "score" (sparda_core/policy.py)
    scores    float32 [B, Hk, M] that led to the selection, for "score"; undefined beyond the current block
    tick      int32 [1] on the device, time of this selection; grows from selection to selection
    diff      written. The list grows from `count` on; a block that this step's token opens is not in it
    arrived   int32 [1], or None: each of the B x Hk programs adds 1 when its part of the list is written, for a copy
              that runs already (gather/gpu_layers.py)
    early     see `kernels.early`; position must not be the previous kernel's doing

    Axes before the last may have any stride. Raises ConfigError where something does not fit, CapacityError for
    fewer slots than the budget.
    """
    options = _diff_options(slots, host, policy, choice.blocks.shape[2])
    if policy == "score" and scores is None:
        raise ConfigError("policy='score' needs the scores of the selection; other policies need none")
    _check(choice, position, slots, host, tick, diff, arrived)
    _check_scores(scores, choice, slots)
    _launch(
        choice, position, slots, host, scores, tick, diff, arrived, options | _NO_CHOICE, warps=_warps(options),
        early=early,
    )  # fmt: skip


def choose_and_diff(
    scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec, choice: Choice, slots: DeviceSlots, host: Paged,
    policy: str, tick: torch.Tensor, diff: DeviceDiff, arrived: torch.Tensor | None = None, *, early: int = AT_END,
) -> None:  # fmt: skip
    """`topk.gpu.choose_blocks`, then `diff_slots`, in one launch; the same results."""
    check_choice(scores, position, spec, choice)
    options = _diff_options(slots, host, policy, spec.budget)
    _check(choice, position, slots, host, tick, diff, arrived)
    _check_scores(scores, choice, slots)
    if spec.block != options["BLOCK"]:
        raise ConfigError(f"slots hold blocks of {options['BLOCK']} tokens, the selection is cut in {spec.block}")
    chosen = choose_options(scores.shape[2], spec)
    _launch(
        choice, position, slots, host, scores, tick, diff, arrived, {"CHOOSE": True} | options | chosen,
        warps=max(_warps(options), choose_warps(chosen["TILE"])), early=early,
    )  # fmt: skip


#: Constants of a launch that finds the selection made.
_NO_CHOICE = {"CHOOSE": False, "SINK": 0, "LOCAL": 0, "TILE": 16, "BUDGET": 0}


def _diff_options(slots: DeviceSlots, host: Paged, policy: str, budget: int) -> dict[str, Any]:
    check_policy(policy)
    count = slots.held.shape[2]
    if count < budget:
        raise CapacityError(
            tier="slots", need=budget, free=count, unit="blocks per KV head", hint="lower the budget or raise slots"
        )
    return {
        "BLOCK": slots.array.shape[2], "PAGE": host.page_blocks, "WIDTH": padded(budget),
        "SLOTS": tile_of(max(count, 32), "slots"), "POLICY": _POLICIES[policy],
    }  # fmt: skip


def _warps(options: dict[str, Any]) -> int:
    """Four, one a scheduler of an SM; more where slots and budget would not fit registers."""
    return 8 if options["WIDTH"] > 256 or options["SLOTS"] > 2048 else 4


def _launch(
    choice: Choice, position: torch.Tensor, slots: DeviceSlots, host: Paged, scores: torch.Tensor | None,
    tick: torch.Tensor, diff: DeviceDiff, arrived: torch.Tensor | None, options: dict[str, Any], *, warps: int,
    early: int,
) -> None:  # fmt: skip
    ranks = scores if scores is not None else slots.held  # any pointer: only "score" and a choice read it
    _diff_kernel[choice.counts.shape](
        *_by_head(ranks), position, *_by_head(choice.blocks), *_by_row(choice.counts),
        *_by_head(slots.held), *_by_head(slots.used), *_by_head(slots.where), *_by_head(host.table), tick,
        *_by_head(diff.physical), *_by_row(diff.tail), *_by_row(diff.misses), *_by_row(diff.opened),
        diff.source, diff.target, diff.count, diff.count if arrived is None else arrived,
        choice.blocks.shape[2], slots.held.shape[2], slots.where.shape[2],
        ARRIVE=arrived is not None, **options, num_warps=warps, **launch_early(early),
    )  # fmt: skip


def _by_head(tensor: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    return tensor, tensor.stride(0), tensor.stride(1)


def _by_row(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    return tensor, tensor.stride(0)


def _check(
    choice: Choice, position: torch.Tensor, slots: DeviceSlots, host: Paged, tick: torch.Tensor, diff: DeviceDiff,
    arrived: torch.Tensor | None,
) -> None:  # fmt: skip
    batch, heads = choice.counts.shape
    tables = {
        "blocks": choice.blocks, "held": slots.held, "used": slots.used, "where": slots.where, "table": host.table,
        "physical": diff.physical,
    }  # fmt: skip
    pairs = {"counts": choice.counts, "tail": diff.tail, "misses": diff.misses, "opened": diff.opened}
    lists = {"source": diff.source, "target": diff.target, "count": diff.count, "tick": tick, "position": position}
    if arrived is not None:
        lists["arrived"] = arrived
        require_shape(arrived, "arrived", one=1)
    require_device(**tables, **pairs, **lists)
    require_dtypes(int32=tables | pairs | lists)
    width, count = choice.blocks.shape[2], slots.held.shape[2]
    last = {"blocks": width, "physical": width, "held": count, "used": count}
    for name, tensor in tables.items():
        require_shape(tensor, name, B=batch, Hk=heads, last=last.get(name))
    for name, tensor in pairs.items():
        require_shape(tensor, name, B=batch, Hk=heads)
    require_shape(position, "position", B=batch)
    require_shape(tick, "tick", one=1)
    require_shape(diff.count, "count", one=1)
    for name, room in (("source", diff.source), ("target", diff.target)):
        if room.numel() < batch * heads * width:
            raise ConfigError(f"{name} has room for {room.numel()} misses; {batch * heads * width} are possible")


def _check_scores(scores: torch.Tensor | None, choice: Choice, slots: DeviceSlots) -> None:
    if scores is not None:
        require_device(scores=scores, blocks=choice.blocks)
        require_dtypes(float32={"scores": scores})
        require_shape(scores, "scores", B=choice.counts.shape[0], Hk=choice.counts.shape[1], M=slots.where.shape[2])
