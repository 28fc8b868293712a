"""How every CPU kernel is compiled: numba's switches in one place.

Kernels release the GIL and are cached on disk, so that only the first run on a machine compiles.
Arithmetic may be reassociated and fused (that is what lets a dot product use SIMD), but NaN and
infinity keep their meaning: scores use -inf, and poisoned memory must stay recognisable.

A kernel that is called from Python writes into arrays that it is given and returns a number or nothing: to hand out
an array of its own, numba runs Python code, and a signal that comes in there is told as a SystemError.

The cache of a kernel is renewed when its own file changes, not when a kernel that it calls from another
file does: after an edit to such a one (`pool.cpu.raise_blocks`), delete the callers' __pycache__.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

#: `for i in prange(n)`: iterations may run on several threads inside a `parallel_kernel`.
prange = numba.prange

_FASTMATH = {"reassoc", "contract", "nsz"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile a serial kernel: the only kind that may run beside another thread's kernels."""
    compiled = numba.njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")(function)
    return cast("_Function", compiled)


def parallel_kernel(function: _Function) -> _Function:
    """Compile a kernel whose `prange` loops use numba's threads.

    For the main thread alone: numba's threading layers may abort the process when two threads enter
    parallel kernels at once. `numba.set_num_threads` says how many cores it takes.
    """
    compiled = numba.njit(cache=True, nogil=True, parallel=True, fastmath=_FASTMATH, error_model="numpy")(function)
    return cast("_Function", compiled)
