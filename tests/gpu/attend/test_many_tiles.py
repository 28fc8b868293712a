"""Lists of many tiles, and scratch used again by the program that adds pieces up: what short rows do not show."""

from __future__ import annotations

import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.kernels.attend.gpu import attend_scratch  # isort: skip
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.attend_dense.gpu import attend_all
from tests.gpu.attend.cases import NAN, TOLERANCE, Rows, make_rows, relative_error
from tests.gpu.attend.test_attend_gpu import SMALL, _by_slots, _paged


def growing(tokens: int) -> Rows:
    """A row whose keys agree with its query the more, the later they come: every tile has a larger logit."""
    rows = make_rows(12, [tokens - 1], spec=SMALL, heads=1, group=1, width=32, dtype=torch.float32, page_blocks=2)
    for token in range(tokens):
        place = rows.places[0][0][token // SMALL.block]
        rows.array[place, 0, token % SMALL.block] += rows.q[0, 0] * (token / tokens)
    return rows


def test_what_was_summed_is_rescaled_whenever_a_tile_has_a_larger_logit() -> None:
    rows = growing(600)
    out = torch.full(rows.q.shape, NAN, dtype=rows.dtype, device=DEVICE)
    scratch = attend_scratch(
        places=1, q_heads=1, kv_heads=1, head_dim=32, blocks=38, block=SMALL.block, dtype=rows.dtype, device=DEVICE,
        tuning=Tuning(splits=1),
    )  # fmt: skip
    attend_all(
        rows.q.to(rows.dtype).to(DEVICE), _paged(rows, 2, 19), rows.position(), SMALL, out, scratch
    )  # fmt: skip
    assert relative_error(out, rows.expected(everything=True)) < TOLERANCE[rows.dtype]


def test_pieces_that_the_last_program_adds_up_are_added_up_in_the_next_launch_too() -> None:
    rows = make_rows(6, [90, 70], spec=SMALL, heads=1, group=2, width=32, dtype=torch.float32)
    scratch = attend_scratch(
        places=2, q_heads=2, kv_heads=1, head_dim=32, blocks=SMALL.budget + 1, block=SMALL.block, dtype=rows.dtype,
        device=DEVICE, tuning=Tuning(splits=3, fused_up_to=8, tokens=16),
    )  # fmt: skip
    for _ in range(3):
        assert relative_error(_by_slots(rows, scratch), rows.expected()) < TOLERANCE[rows.dtype]
        assert (scratch.arrived == 0).all()
