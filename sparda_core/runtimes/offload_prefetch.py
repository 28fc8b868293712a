"""Offload with prefetch: a layer's misses travel while the layers before it compute (SparDA, section 3)."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.runtimes.planner import PlanWriter


@attrs.frozen(kw_only=True)
class OffloadPrefetch(PlanWriter):
    """The transfer of a layer is issued as soon as its selection is known, at least one layer early."""

    name: ClassVar[str] = "offload-prefetch"
    min_lead: ClassVar[int] = 1
    offloads: ClassVar[bool] = True

    @property
    def early(self) -> bool:
        """Issued right after the residency diff."""
        return True
