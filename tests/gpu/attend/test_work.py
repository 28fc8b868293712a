"""The work that is stated of decode attention is that of its launch, and a cut never outgrows its scratch."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.facts import steady_facts
from sparda_core.kernels.attend.work import work
from sparda_core.plan import Kind, Op
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import WorkContext
from tests.gpu_env import DEVICE

# isort: split
from sparda_core.kernels.attend import gpu
from sparda_core.kernels.attend.occupancy import H200, KIB, Sms
from sparda_core.kernels.attend.splitting import MOST_SPLITS, Tuning, cut_lists, most_parts
from tests.gpu.attend.cases import make_rows

SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=20)
SHAPE = ModelShape(name="t", layers=1, hidden=64, ffn=64, q_heads=4, kv_heads=2, head_dim=32, vocab=9, context=4096)
#: MiniCPM4.1-8B.
SHAPED: Any = {"block": 64, "group": 16, "head_dim": 128, "value_bytes": 2}


@attrs.define
class Recorder:
    """Stands for a kernel: keeps the grids it is launched with."""

    grids: list[tuple[int, ...]] = attrs.field(factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Recorder:
        self.grids.append(grid)
        return self

    def __call__(self, *values: object, **named: object) -> None: ...


@pytest.mark.parametrize(("batch", "context"), [(1, 2000), (3, 2000), (3, 30), (80, 2000)])
def test_thread_blocks_and_launches_are_those_of_the_launch(
    monkeypatch: pytest.MonkeyPatch, batch: int, context: int
) -> None:
    pieces, joins = Recorder(), Recorder()
    monkeypatch.setattr(gpu, "attend_kernel", pieces)
    monkeypatch.setattr(gpu, "join_kernel", joins)
    monkeypatch.setattr(gpu, "sm_count", lambda device: H200.count)
    monkeypatch.setattr(gpu, "sm_shared_bytes", lambda device: H200.shared_bytes)
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=batch, context=context, churn=0.1)
    blocks = int(facts.selected.max())
    rows = make_rows(1, [-1] * batch, spec=SPEC, heads=2, group=2, width=32, dtype=torch.float32)
    scratch = gpu.attend_scratch(
        places=batch, q_heads=4, kv_heads=2, head_dim=32, blocks=blocks, block=16, dtype=torch.float32, device=DEVICE
    )
    q = rows.q.float().to(DEVICE)
    physical, counts = rows.table(blocks, as_places=True)
    gpu.attend_slots(q, rows.array.float().to(DEVICE), physical, counts, rows.position(), SPEC, q, scratch)
    stated = work(Op(kind=Kind.ATTEND, layer=0), facts, WorkContext(shape=SHAPE, spec=SPEC, kv_bytes=4))
    assert [np.prod(grid) for grid in pieces.grids] == [stated.ctas]
    assert len(pieces.grids + joins.grids) == stated.launches


@given(
    pairs=st.integers(1, 600), blocks=st.integers(1, 3000), fewer=st.integers(1, 3000),
    sms=st.sampled_from([1, 40, 132]), shared=st.sampled_from([64, 100, 164, 228]),
    splits=st.sampled_from([None, None, 1, 7, 300]), most=st.integers(0, 500),
)  # fmt: skip
def test_a_cut_fits_scratch_made_for_as_many_rows_and_blocks_or_more(
    pairs: int, blocks: int, fewer: int, sms: int, shared: int, splits: int | None, most: int
) -> None:
    tuning, here = Tuning(splits=splits), Sms(count=sms, shared_bytes=shared * KIB)
    cut = cut_lists(pairs, min(blocks, fewer), sms=here, tuning=tuning, **SHAPED)
    assert 1 <= cut.splits <= min(MOST_SPLITS, -(-min(blocks, fewer) * 64 // cut.tokens))
    assert cut.join in (0, cut.splits)
    room = most_parts(pairs + most, blocks, block=64, head_dim=128, value_bytes=2, sms=here, tuning=tuning)
    assert pairs * cut.splits <= room


@pytest.mark.parametrize(("batch", "pieces"), [(1, 96), (2, 64), (4, 32), (8, 16), (16, 8)])
def test_few_short_lists_fill_the_device_twice_at_once(batch: int, pieces: int) -> None:
    cut = cut_lists(2 * batch, 96, sms=H200, **SHAPED)
    assert (cut.splits, cut.tokens, cut.join) == (pieces, 32, 0)
    assert cut_lists(2 * batch, 1, sms=H200, **SHAPED).join == 1


def test_many_or_long_lists_are_cut_into_few_large_pieces() -> None:
    for pairs, blocks in ((56, 96), (16, 2048)):
        cut = cut_lists(pairs, blocks, sms=H200, **SHAPED)
        assert (cut.tokens, cut.warps) == (64, 4)
