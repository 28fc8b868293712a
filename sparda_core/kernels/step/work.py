"""Work at the ends of a decode step: next to nothing but launches."""

from __future__ import annotations

from sparda_core.work import Work, WorkContext


def begin_work(context: WorkContext) -> Work:
    """A tick read and written, a count a layer zeroed."""
    return Work(hbm_bytes=8.0 + 4 * context.shape.layers, ctas=1)


def advance_work(rows: int) -> Work:
    """Each row's position read and written, its token replaced by the sampled one."""
    return Work(hbm_bytes=(8.0 + 16) * rows, ctas=1)
