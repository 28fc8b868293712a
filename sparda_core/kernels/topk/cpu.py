"""Choosing blocks on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import compute_dtype, host_array
from sparda_core.kernels.jit import kernel
from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import BlockSpec

_Scores = npt.NDArray[Any]
_Ids = npt.NDArray[np.int32]


def choose_blocks(scores: torch.Tensor, positions: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """See `topk.reference.choose_blocks`; CPU tensors only. float16 and bfloat16 scores are widened, so ranks stay."""
    scores_BHTM = host_array(scores, compute_dtype(scores))
    positions_BT = host_array(positions, torch.int64)
    chosen = np.full((*scores_BHTM.shape[:3], spec.budget), NO_BLOCK, dtype=np.int32)
    _choose(scores_BHTM, positions_BT, spec.block, spec.sink, spec.local, chosen)
    return torch.from_numpy(chosen)


@kernel
def _choose(
    scores: _Scores, positions: npt.NDArray[np.int64], block: int, sink: int, local: int, chosen: _Ids
) -> None:
    batch, heads, queries, _ = scores.shape
    best = np.empty(chosen.shape[3], np.int64)
    best_scores = np.empty(chosen.shape[3], scores.dtype)
    for row in range(batch):
        for query in range(queries):
            position = positions[row, query]
            if position < 0:
                continue
            current = position // block
            first_local = max(0, current - local)
            first_free = min(sink, first_local)
            free = chosen.shape[3] - first_free - (current - first_local + 1)
            for head in range(heads):
                found = _best_free(scores[row, head, query], first_free, first_local, free, best, best_scores)
                out = chosen[row, head, query]
                for b in range(first_free):
                    out[b] = b
                _write_ascending(best, found, out, first_free)
                for i in range(current - first_local + 1):
                    out[first_free + found + i] = first_local + i


@kernel
def _best_free(
    scores: _Scores, start: int, stop: int, width: int, best: npt.NDArray[np.int64], best_scores: _Scores
) -> int:
    """Insertion into the `width` best so far. Blocks come in rising id: an equal score never overtakes."""
    found = 0
    for b in range(start, stop):
        score = scores[b] if b < scores.size else -np.inf
        if np.isnan(score):
            score = -np.inf
        if found == width:
            if width == 0 or score <= best_scores[found - 1]:
                continue
            found -= 1
        at = found
        while at > 0 and score > best_scores[at - 1]:
            best[at], best_scores[at] = best[at - 1], best_scores[at - 1]
            at -= 1
        best[at], best_scores[at] = b, score
        found += 1
    return found


@kernel
def _write_ascending(ids: npt.NDArray[np.int64], count: int, out: _Ids, start: int) -> None:
    """Insertion into out[start:]; numba's own sort takes seconds to compile."""
    for i in range(count):
        at = start + i
        while at > start and out[at - 1] > ids[i]:
            out[at] = out[at - 1]
            at -= 1
        out[at] = ids[i]
