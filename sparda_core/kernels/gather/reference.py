"""Copying blocks from one tier to another, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def gather_blocks(
    source: npt.NDArray[Any],
    target: npt.NDArray[Any],
    source_ids: npt.NDArray[np.int64],
    target_ids: npt.NDArray[np.int64],
    start: int,
    stop: int,
) -> None:
    """Copy block source_ids[i] of `source` to block target_ids[i] of `target`, for i in [start, stop).

    source, target          float [n, 2, block, D], each with its own n; they must not overlap
    source_ids, target_ids  int64 [m], indices along the first axis; where a target repeats, the last wins
    """
    for i in range(start, stop):
        target[target_ids[i]] = source[source_ids[i]]
