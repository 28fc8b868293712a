"""Work that gives something back is done to its end, whatever interrupts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def to_the_end(work: Callable[..., None], *given: Any) -> None:
    """Does `work`, which may be done twice; where it is interrupted, once more before the error goes on.

    For what gives memory back, or puts back what was set: half of it done would help nobody.
    """
    try:
        work(*given)
    except BaseException:
        work(*given)
        raise
