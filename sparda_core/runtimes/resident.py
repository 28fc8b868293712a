"""GPU-resident: every block of every layer stays on the device, and attention reads it in place."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.runtimes.planner import PlanWriter


@attrs.frozen(kw_only=True)
class Resident(PlanWriter):
    """No host store, no transfer: the upper bound that offloading is held against."""

    name: ClassVar[str] = "resident"

    @property
    def early(self) -> bool:
        """Nothing is ever moved."""
        return False
