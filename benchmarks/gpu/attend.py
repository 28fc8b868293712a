"""Decode attention: checked against float64, then timed at the shape of MiniCPM4.1-8B.

python -m benchmarks.gpu.attend [--json FILE]      without a GPU: the check alone, tiny, interpreted

Predicted before measuring, a layer in bf16 with budget 96 x 64 (floor = keys and values over 4.2 TB/s, which is
1.5 us a row): batch 1 about 6 us, 4 9, 8 15, 16 27, 28 46, 64 101; the aim is 1.35 floors + 4 us. How lists are cut,
by measurement: `attend_sweep.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import median_us
from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import AttendScratch, attend_all, attend_pages, attend_scratch, attend_slots
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec

DEVICE = tests.gpu_env.DEVICE
BYTES_PER_US = 4.2e6
MAIN = BlockSpec(block=64, window=32, stride=16, sink=1, local=32, budget=96)
HQ, HK, D, CONTEXT = 32, 2, 128, 2**17


class Layers:
    """Layers with slots filled by random blocks, more of them than the second-level cache holds."""

    def __init__(self, batch: int, spec: BlockSpec, dtype: torch.dtype, *, layers: int, width: int = D) -> None:
        pairs, slots = batch * HK, spec.budget
        self.spec, self.batch = spec, batch
        self.q = torch.randn(batch, HQ, width, device=DEVICE).to(dtype)
        self.out = torch.full_like(self.q, float("nan"))
        self.position = torch.randint(CONTEXT - 4096, CONTEXT, (batch,), device=DEVICE, dtype=torch.int32)
        self.counts = torch.full((batch, HK), slots, device=DEVICE, dtype=torch.int32)
        shape = (pairs * slots, 2, spec.block, width)
        self.arrays = [torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(layers)]
        order = torch.stack([torch.randperm(slots, device=DEVICE) for _ in range(pairs)])
        self.physical = (order + slots * torch.arange(pairs, device=DEVICE)[:, None]).view(batch, HK, slots).int()

    def scratch(self, tuning: Tuning | None = None) -> AttendScratch:
        """For these rows."""
        return attend_scratch(
            places=self.batch, q_heads=HQ, kv_heads=HK, head_dim=self.q.shape[2], blocks=self.spec.budget,
            block=self.spec.block, dtype=self.q.dtype, device=DEVICE, tuning=tuning,
        )  # fmt: skip

    def launch(self, layer: int, scratch: AttendScratch, early: int = 0) -> None:
        """One layer's attention."""
        attend_slots(
            self.q, self.arrays[layer], self.physical, self.counts, self.position, self.spec, self.out, scratch,
            early=early,
        )  # fmt: skip

    def expected(self, layer: int, rows: slice = slice(None)) -> torch.Tensor:
        """float64 [B, Hq, D] of some rows, in plain torch on the device."""
        blocks = self.arrays[layer][self.physical[rows].long()].double()  # [B, Hk, W, 2, block, D]
        keys, values = (blocks[:, :, :, i].flatten(2, 3) for i in (0, 1))
        seen = (self.spec.budget - 1) * self.spec.block + self.position[rows].long() % self.spec.block + 1
        hidden = torch.arange(keys.shape[2], device=DEVICE) >= seen[:, None]
        q = self.q[rows].double().view(-1, HK, HQ // HK, self.q.shape[-1])
        logits = q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5
        weights = logits.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1)
        mixed: torch.Tensor = weights @ values
        return mixed.reshape(-1, HQ, self.q.shape[-1])


def check() -> None:
    """Raise AssertionError unless every way of adding pieces up agrees with float64."""
    on_gpu = DEVICE.type == "cuda"
    spec = MAIN if on_gpu else BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
    dtype, bound = (torch.bfloat16, 1e-2) if on_gpu else (torch.float32, 1e-5)
    torch.manual_seed(0)
    for batch in (1, 3, 16) if on_gpu else (2,):
        layers = Layers(batch, spec, dtype, layers=1, width=D if on_gpu else 32)
        want = layers.expected(0)
        two = [Tuning(splits=splits, fused_up_to=1, early=early) for splits in (4, 40, 96) for early in (False, True)]
        for tuning in (Tuning(), Tuning(splits=1), Tuning(splits=4), *two):
            scratch = layers.scratch(tuning)
            for _ in range(3 if on_gpu else 1):
                layers.out.fill_(float("nan"))
                layers.launch(0, scratch)
                wrong = float((layers.out.double() - want).norm() / want.norm())
                assert wrong < bound, f"batch {batch}, {tuning}: relative error {wrong:.1e}"
    print("attention agrees with float64")


def time_slots(batch: int, tuning: Tuning | None = None) -> float:
    """Microseconds of one launch over selected blocks in slots, each launch another layer's."""
    nbytes = batch * HK * MAIN.budget * 2 * MAIN.block * D * 2
    count = max(2, min(32, 2**29 // nbytes))
    layers = Layers(batch, MAIN, torch.bfloat16, layers=count)
    scratch = layers.scratch(tuning)
    return median_us([_bind(layers.launch, i % count, scratch) for i in range(max(32, count))])


def _bind(function: Callable[..., None], *values: object) -> Callable[[], None]:
    return lambda: function(*values)


def time_resident(batch: int, *, everything: bool) -> float:
    """Microseconds of one launch over a resident layer of 128K tokens a row: its selection, or all of it."""
    blocks = CONTEXT // MAIN.block
    array = torch.randn(batch * HK * blocks, 2, MAIN.block, D, device=DEVICE, dtype=torch.bfloat16)
    page = 64
    table = torch.randperm(batch * HK * blocks // page, device=DEVICE).int().view(batch, HK, -1)
    paged = Paged(array=array, table=table, page_blocks=page)
    q = torch.randn(batch, HQ, D, device=DEVICE).bfloat16()
    out = torch.empty_like(q)
    position = torch.full((batch,), CONTEXT - 5, device=DEVICE, dtype=torch.int32)
    scratch = attend_scratch(
        places=batch, q_heads=HQ, kv_heads=HK, head_dim=D, blocks=blocks, block=MAIN.block, dtype=q.dtype, device=DEVICE
    )
    if everything:
        took = median_us([lambda: attend_all(q, paged, position, MAIN, out, scratch)] * 4)
        for row in {0, batch - 1}:
            want = expected_all(q[row], paged, row, CONTEXT - 4)
            wrong = float((out[row].double() - want).norm() / want.norm())
            assert wrong < 1e-2, f"dense, row {row} of {batch}: relative error {wrong:.1e}"
        return took
    counts = torch.full((batch, HK), MAIN.budget, device=DEVICE, dtype=torch.int32)
    launches = []
    for _ in range(16):
        order = torch.rand(batch, HK, blocks - 1, device=DEVICE).argsort(-1)[..., : MAIN.budget - 1]
        last = torch.full((batch, HK, 1), blocks - 1, device=DEVICE)
        choice = Choice(blocks=torch.cat([order.sort(-1).values, last], -1).int(), counts=counts)
        launches.append(_bind(attend_pages, q, paged, choice, position, MAIN, out, scratch))
    return median_us(launches)


def expected_all(q: torch.Tensor, paged: Paged, row: int, tokens: int) -> torch.Tensor:
    """float64 [Hq, D]: one row's dense attention in plain torch."""
    heads = []
    for head, mine in enumerate(q.double().view(HK, -1, q.shape[-1])):
        pages = paged.table[row, head].long()
        blocks = (pages[:, None] * paged.page_blocks + torch.arange(paged.page_blocks, device=q.device)).flatten()
        keys, values = paged.array[blocks].transpose(0, 1).flatten(1, 2)[:, :tokens].double()
        heads.append((mine @ keys.T / q.shape[-1] ** 0.5).softmax(-1) @ values)
    return torch.cat(heads)


def row(what: str, batch: int, got: float, tokens: int, note: str = "") -> dict[str, object]:
    """One line of the table: time, floor by bytes, ratio, and whether the aim is met."""
    floor = batch * HK * tokens * 2 * D * 2 / BYTES_PER_US
    print(
        f"{what:10s} batch {batch:3d}  {got:8.2f} us  floor {floor:8.2f}  ratio {got / floor:5.2f}  "
        f"aim {1.35 * floor + 4:8.2f} {'met' if got <= 1.35 * floor + 4 else 'MISSED'}  {note}",
        flush=True,
    )
    return {"what": what, "batch": batch, "us": got, "floor_us": floor, "note": note}


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    check()
    if DEVICE.type != "cuda":
        return
    selected = MAIN.budget * MAIN.block
    rows = [row("slots", batch, time_slots(batch), selected) for batch in (1, 2, 4, 8, 16, 28, 64)]
    rows += [row("pages", batch, time_resident(batch, everything=False), selected) for batch in (1, 16)]
    rows += [row("all, 128K", batch, time_resident(batch, everything=True), CONTEXT - 4) for batch in (1, 4, 16)]
    keep(args.json, "attention of one token", rows)


if __name__ == "__main__":
    main()
