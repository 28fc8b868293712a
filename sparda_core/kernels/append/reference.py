"""Writing the keys and values of new tokens, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def append_tokens(
    pool: npt.NDArray[Any],
    physical: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    key: npt.NDArray[Any],
    value: npt.NDArray[Any],
) -> None:
    """Write each new token's key and value to its block, in place.

    pool        float [n, 2, block, D], K then V
    physical    int64 [B, Hk, T], index into pool of the block each token goes to; -1 skips the token
    offsets     int64 [B, T], place inside that block
    key, value  float [B, Hk, T, D], rounded to the dtype of the pool
    """
    for (row, head, t), block in np.ndenumerate(physical):
        if block >= 0:
            pool[block, 0, offsets[row, t]] = key[row, head, t]
            pool[block, 1, offsets[row, t]] = value[row, head, t]
