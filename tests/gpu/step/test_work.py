"""The work that is stated of small kernels is that of their grids and of the bytes they touch."""

from __future__ import annotations

import math

from sparda_core.kernels.gate import gpu as gate
from sparda_core.kernels.gate.work import gate_work
from sparda_core.kernels.norm import gpu as norm
from sparda_core.kernels.norm import gpu_heads as norm_heads
from sparda_core.kernels.norm.work import norm_heads_work, norm_work
from sparda_core.kernels.sample import gpu as sample
from sparda_core.kernels.sample.work import greedy_work
from sparda_core.kernels.step.work import advance_work, begin_work
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.work import WorkContext

SHAPE = named_shape("minicpm4.1-8b")
CONTEXT = WorkContext(shape=SHAPE, spec=BlockSpec())


def test_thread_blocks_are_those_of_the_launch() -> None:
    assert norm_work(16, CONTEXT).ctas == math.prod(norm.grid(16))
    heads = norm_heads.heads_grid(16, SHAPE.q_heads + SHAPE.kv_heads)
    assert norm_heads_work(16, CONTEXT).ctas == math.prod(heads)
    assert gate_work(16, CONTEXT).ctas == math.prod(gate.grid(16, SHAPE.ffn))
    assert greedy_work(16, CONTEXT).ctas == math.prod(sample.grid(16, SHAPE.vocab))


def test_bytes_are_those_of_what_is_read_and_written() -> None:
    assert norm_work(16, CONTEXT).hbm_bytes == 2 * (16 * 4096 + 4096 + 16 * 4096)
    heads = (SHAPE.q_heads + SHAPE.kv_heads) * SHAPE.head_dim
    assert norm_heads_work(16, CONTEXT).hbm_bytes == 2 * (16 * heads + heads + 16 * heads)
    assert gate_work(16, CONTEXT).hbm_bytes == 2 * 16 * (2 * 16384 + 16384)
    assert greedy_work(2, CONTEXT).hbm_bytes == 2 * (73448 * 4 + 36 * (4 + 4) * 2 + 8)
    assert begin_work(CONTEXT).hbm_bytes == 4 + 4 + 32 * 4
    assert advance_work(3).hbm_bytes == 3 * (4 + 4 + 8 + 8)
