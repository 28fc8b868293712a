"""Offload, synchronous: blocks live in host memory, and every layer waits for its misses."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.runtimes.planner import PlanWriter


@attrs.frozen(kw_only=True)
class OffloadSync(PlanWriter):
    """The transfer of a layer is issued when its attention is next; any selector will do."""

    name: ClassVar[str] = "offload-sync"
    offloads: ClassVar[bool] = True

    @property
    def early(self) -> bool:
        """Issued just before it is needed, even when the selection has been known for a layer."""
        return False
