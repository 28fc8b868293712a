"""A list of misses as the host gets to read it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


def tell_list(count: Ints, source: Ints, target: Ints, told_count: Ints, told: Ints) -> None:
    """Write the length of a list, and as much of the list as it says, to where the host reads them.

    count, source, target  int32 [1], [n], [n]: `DeviceDiff` of kernels/tables.py, count <= n
    told_count             int32 [1], written
    told                   int32 [2, m], m >= n: blocks of host memory and slots; what lies behind the list stays
    """
    told_count[0] = count[0]
    for at in range(count[0]):
        told[0, at] = source[at]
        told[1, at] = target[at]
