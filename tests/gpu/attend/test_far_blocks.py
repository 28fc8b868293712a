"""Blocks that lie beyond 2**31 values are found, by slot, by page, by copy; and timing waits for what it reads."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.bench.gpu_clock import graph_of
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

# isort: split
from triton.runtime.interpreter import GridExecutor

from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import attend_all, attend_pages, attend_scratch, attend_slots
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.tables import Paged
from tests.gpu.attend.cases import NAN, TOLERANCE, Rows, make_rows, relative_error
from tests.gpu.attend.far import APART, far_blocks

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)


@pytest.fixture(autouse=True)
def _memory_is_not_copied_onto_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works on CPU tensors in place, and then copies each whole storage back: gigabytes of nothing."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda self, *args: None)


def _one_row() -> Rows:
    """A row of one head and three blocks; the array holds two more, which are cut off."""
    rows = make_rows(11, [40], spec=SPEC, heads=1, group=2, width=32, dtype=torch.float16)
    order = rows.places[0][0]
    return attrs.evolve(rows, array=rows.array[order], places=[[list(range(3))]])


@pytest.mark.parametrize("found", ["slots", "pages", "all"])
def test_attention_reads_blocks_beyond_32_bits(found: str) -> None:
    rows = _one_row()
    array = far_blocks(rows.array.half())
    assert 2 * APART > 2**31
    q, out = rows.q.half().to(DEVICE), torch.full(rows.q.shape, NAN, dtype=torch.float16, device=DEVICE)
    lists, counts = rows.table(4, as_places=True)
    table = torch.arange(3, dtype=torch.int32, device=DEVICE)[None, None]
    paged = Paged(array=array, table=table, page_blocks=1)
    scratch = attend_scratch(
        places=1, q_heads=2, kv_heads=1, head_dim=32, blocks=4, block=16, dtype=torch.float16, device=DEVICE
    )
    if found == "slots":
        attend_slots(q, array, lists, counts, rows.position(), SPEC, out, scratch)
    elif found == "pages":
        attend_pages(q, paged, Choice(blocks=lists, counts=counts), rows.position(), SPEC, out, scratch)
    else:
        attend_all(q, paged, rows.position(), SPEC, out, scratch)
    assert relative_error(out, rows.expected(everything=found == "all")) < TOLERANCE[torch.float16]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="pinning gigabytes takes longer than the test is worth")
def test_a_copy_reads_and_writes_blocks_beyond_32_bits() -> None:
    blocks = torch.randn(3, 2, 16, 32).half()
    target = far_blocks(torch.zeros_like(blocks))
    ids = torch.tensor([2, 0, 1], dtype=torch.int32)
    gather_blocks(far_blocks(blocks), target, ids, ids.flip(0), torch.tensor([3], dtype=torch.int32))
    assert torch.equal(target[ids.flip(0).long()], blocks[ids.long()])


@pytest.mark.gpu
def test_a_timed_graph_first_runs_when_its_tensors_have_been_filled() -> None:
    table, seen = torch.zeros(4, device=DEVICE), torch.zeros(4, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # the current stream is behind, as after filling gigabytes
    table.fill_(7.0)
    kept = iter([seen])  # what the first run read stays: the graph's own runs copy elsewhere

    def launch() -> None:
        next(kept, torch.empty_like(seen)).copy_(table)

    graph_of([launch])
    torch.cuda.synchronize()
    assert (seen == 7).all()
