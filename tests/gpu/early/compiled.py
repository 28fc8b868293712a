"""Every kernel that can start early, launched through Triton's front end and compiled to PTX without a GPU.

python tests/gpu/early/compiled.py ARCH EARLY, in a process of its own: nothing is interpreted in it. Prints, as JSON,
a list of {"kernel", "pointers", "ptx"}; `pointers` are the names of the PTX parameters in their order.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"

import attrs
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import sparda_core.kernels.device as device_module
from sparda_core.device_view import Choice
from sparda_core.kernels.append.gpu import append_tokens, rotate, rotate_append
from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.attend.gpu import attend_pages, attend_scratch, attend_slots
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.kernels.gate.gpu import silu_gate
from sparda_core.kernels.listed.gpu import list_forced, play_position, play_step
from sparda_core.kernels.norm.gpu import rms_norm
from sparda_core.kernels.norm.gpu_heads import norm_heads
from sparda_core.kernels.quantise.gpu import quantise_closed
from sparda_core.kernels.sample.gpu import greedy, sample_scratch
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_proxy.gpu import project_query
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_uniform.gpu import uniform_block_scores
from sparda_core.kernels.shortlist.gpu import shortlist_scores
from sparda_core.kernels.step.gpu import advance, embed_tokens
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged
from sparda_core.kernels.tell.gpu import tell_list
from sparda_core.kernels.token_bias.gpu import keep_bias
from sparda_core.shapes import BlockSpec

B, HQ, HK, D, TOKENS, HIDDEN = 3, 32, 2, 128, 4096, 4096
SPEC = BlockSpec(sink=1, local=32, budget=96)
DTYPE = torch.bfloat16


class NoDriver:
    """Says what would be there. Kernels are compiled for it and never launched."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def real(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=DTYPE)


def ints(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


def append(early: int) -> None:
    """Rotary, entries, K and V, with slots and a host copy."""
    heads, blocks = FusedHeads(q=HQ, kv=HK, has_next=True), TOKENS // SPEC.block
    table = torch.zeros(TOKENS, D)
    store = Store(
        slots=real(B * HK * 96, 2, 64, D), tail=ints(B, HK),
        host=Paged(array=real(blocks, 2, 64, D), table=ints(B, HK, blocks), page_blocks=1),
    )
    outs = {name: real(B, HK, D) for name in ("key", "value", "forecast_next")}
    rotate_append(
        real(B, heads.total * D), heads=heads, cos=table, sin=table, position=ints(B), query=real(B, HQ, D),
        forecast_own=None, entries=real(B, HK, SPEC.entry_count(TOKENS), D), ring=real(B, HK, SPEC.window, D),
        spec=SPEC, store=store, early=early, **outs,
    )  # fmt: skip
    append_tokens(outs["key"], outs["value"], ints(B), store, early=early)
    rotate(real(B, HQ * D), cos=table, sin=table, position=ints(B), query=real(B, HQ, D), early=early)


def small(early: int) -> None:
    """Norm, gate, and the ends of a step."""
    x, token = real(B, HIDDEN), torch.zeros(B, dtype=torch.int64)
    rms_norm(x, x[0], x, eps=1e-5, early=early)
    norm_heads(real(B, (HQ + 2 * HK) * D), real(HQ + HK, D), eps=1e-5, early=early)
    silu_gate(real(B, 8192), x, early=early)
    embed_tokens(token, ints(B), real(100, HIDDEN), x, early=early)
    advance(ints(B), token, token, early=early)
    logits = torch.zeros(B, 10000)
    greedy(logits, token, sample_scratch(B, 10000, torch.device("cpu"), nucleus=False), early=early)


def score(early: int) -> None:
    """Every way of scoring."""
    entries, out = real(B, HK, SPEC.entry_count(TOKENS), D), torch.zeros(B, HK, TOKENS // 64)
    for unseen in (0, 1):
        forecast_block_scores(real(B, HK, D), entries, ints(B), SPEC, unseen, out, early=early)
    scratch = query_scratch(
        places=B, q_heads=HQ, kv_heads=HK, entries=entries.shape[2], device=torch.device("cpu")
    )
    query_block_scores(real(B, HQ, D), entries, ints(B), SPEC, 0, out, scratch, early=early)
    project_query(real(B, HQ, D), real(B, HK, D, 32), ints(B), torch.zeros(B, HK, 32), early=early)
    uniform_block_scores(ints(B), 1234567, 64, out, early=early)


def select(early: int) -> None:
    """Choice, lists and traces, diff, its list for the host, float8."""
    blocks, slots = TOKENS // 64, 96
    scores, choice = torch.zeros(B, HK, blocks), Choice(blocks=ints(B, HK, 96), counts=ints(B, HK))
    held = DeviceSlots(
        array=real(B * HK * slots, 2, 64, D), held=ints(B, HK, slots), used=ints(B, HK, slots),
        where=ints(B, HK, blocks),
    )  # fmt: skip
    host = Paged(array=real(16, 2, 64, D), table=ints(B, HK, blocks), page_blocks=1)
    diff = DeviceDiff(
        physical=ints(B, HK, 96), tail=ints(B, HK), source=ints(B * HK * 96), target=ints(B * HK * 96), count=ints(1),
        misses=ints(B, HK), opened=ints(B, HK),
    )  # fmt: skip
    list_forced(ints(B), SPEC, choice, early=early)
    trace = ints(4, 2, B, HK, 96)
    play_step(trace, 1, ints(1), 1, ints(B), choice, early=early)
    play_position(trace, 1, ints(B, 7), ints(B), 1, ints(B), choice, ints(1), early=early)
    diff_slots(choice, ints(B), held, host, "lru", None, ints(1), diff, early=early)
    choose_and_diff(scores, ints(B), SPEC, choice, held, host, "last-selection", ints(1), diff, early=early)
    tell_list(diff, ints(1), ints(2, B * HK * 96), early=early)
    narrow = Paged(
        array=torch.zeros(16, 2, 64, D, dtype=torch.uint8), table=host.table, page_blocks=1, scales=torch.zeros(16, 2)
    )
    quantise_closed(held.array, diff.tail, ints(B), narrow, SPEC, early=early)


def attend(early: int) -> None:
    """Attention in place of one row, cut into many pieces, and their sum."""
    q, out, table = real(1, HQ, D), real(1, HQ, D), ints(1, HK, TOKENS // 64)
    scratch = attend_scratch(
        places=1, q_heads=HQ, kv_heads=HK, head_dim=D, blocks=96, block=64, dtype=DTYPE, device=torch.device("cpu"),
        tuning=Tuning(splits=24, fused_up_to=1),
    )  # fmt: skip
    scratch = attrs.evolve(scratch, early=early > 0)
    paged = Paged(array=real(16, 2, 64, D), table=table, page_blocks=1)
    choice = Choice(blocks=ints(1, HK, 96), counts=ints(1, HK))
    attend_pages(q, paged, choice, ints(1), SPEC, out, scratch, early=early)


def nosa(early: int) -> None:
    """A token's bias, the two-stage choice of either lead, and attention that adds the bias."""
    tokens, means = torch.zeros(B, HK, TOKENS), torch.zeros(B, HK, SPEC.entry_count(TOKENS))
    keep_bias(
        real(B, HK, D), real(HK), real(HK, HK * D), ints(B), tokens=tokens, means=means, spec=SPEC, early=early
    )
    shortlist_scores(torch.zeros(B, HK, TOKENS // 64), means, ints(B), SPEC, 1, keep=41, early=early)
    scratch = attend_scratch(
        places=B, q_heads=HQ, kv_heads=HK, head_dim=D, blocks=96, block=64, dtype=DTYPE, device=torch.device("cpu"),
        tuning=Tuning(splits=24, fused_up_to=1),
    )  # fmt: skip
    scratch = attrs.evolve(scratch, early=early > 0)
    paged = Paged(array=real(16, 2, 64, D), table=ints(B, HK, TOKENS // 64), page_blocks=1)
    choice = Choice(blocks=ints(B, HK, 96), counts=ints(B, HK))
    attend_pages(
        real(B, HQ, D), paged, choice, ints(B), SPEC, real(B, HQ, D), scratch, early=early, bias=tokens
    )
    attend_slots(
        real(B, HQ, D), paged.array, choice.blocks, choice.counts, ints(B), SPEC, real(B, HQ, D), scratch, early=early,
        bias=tokens, logical=choice.blocks,
    )  # fmt: skip


def compiled(arch: int, early: int) -> list[dict[str, Any]]:
    """What the launches above compile to."""
    found: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        names = [name for name, kind in kernel.src.signature.items() if kind != "constexpr"]
        found.append({"kernel": self.__name__, "pointers": names, "ptx": kernel.asm["ptx"]})
        return kernel

    driver.set_active(NoDriver(arch))
    JITFunction.run = compile_only
    device_module.INTERPRETED = True  # tensors may lie on the CPU: nobody reads them
    for part in (append, small, score, select, attend, nosa):
        part(early)
    return found


if __name__ == "__main__":
    json.dump(compiled(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
