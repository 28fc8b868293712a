"""Ragged rows in poisoned memory, and what references say about them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

NAN = float("nan")
SMALL = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
ODD = BlockSpec(block=48, window=32, stride=16, sink=1, local=1, budget=5)
SPECS = (SMALL, ODD, BlockSpec(budget=6))
#: Largest relative error of block scores, by norm, against float64 on the same inputs. Tensor cores add up less finely.
TOLERANCE = 3e-6 if DEVICE.type == "cpu" else 3e-5


def randn(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values that depend on the seed alone."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(device=DEVICE, dtype=dtype)


def poisoned(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory that nobody wrote."""
    return torch.full(size, NAN, device=DEVICE, dtype=dtype)


def positions(at: Sequence[int]) -> torch.Tensor:
    """int32 [B]."""
    return torch.tensor(at, dtype=torch.int32, device=DEVICE)


def keys(seed: int, counts: Sequence[int], heads: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, Hk, N, w], a view with free leading strides; NaN beyond each row's count."""
    room = poisoned(len(counts) + 1, heads + 1, max(counts, default=0) + 3, width + 4, dtype=dtype)
    view = room[: len(counts), :heads, :, :width]
    for row, count in enumerate(counts):
        view[row, :, :count] = randn(seed + row, heads, count, width, dtype=dtype)
    return view


def entry_counts(at: Sequence[int], spec: BlockSpec, unseen: int) -> list[int]:
    """Entries of rows that decode the token at `at`."""
    return [spec.entry_count(max(0, position + 1 - unseen)) for position in at]


def as_view(entries: torch.Tensor, counts: Sequence[int]) -> EntryView:
    """What the references take, in float64."""
    rows = torch.arange(len(counts), device=entries.device)
    return EntryView(buffer=entries.double(), rows=rows, counts=torch.tensor(counts, device=entries.device))


def assert_scores(got: torch.Tensor, want: torch.Tensor, at: Sequence[int], block: int, within: float) -> None:
    """Equal up to every row's current block; beyond, `got` [B, Hk, M] is as poisoned as it was.

    want  [B, Hk, 1, M']
    """
    mine, theirs = [], []
    for row, position in enumerate(at):
        current = position // block + 1 if position >= 0 else 0
        one, other = got[row, :, :current].double(), want[row, :, 0, :current].double()
        assert torch.equal(one.isinf(), other.isinf()), f"row {row} at {position}: {one} against {other}"
        assert not one.isnan().any(), f"row {row} at {position}: {one}"
        assert got[row, :, current:].isnan().all(), f"row {row} at {position}: written beyond its current block"
        mine.append(one[other.isfinite()])
        theirs.append(other[other.isfinite()])
    error = float((torch.cat(mine) - torch.cat(theirs)).norm() / torch.cat(theirs).norm())
    assert error <= within, f"relative error {error:.1e}"
