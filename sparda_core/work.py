"""Work: what an operation asks of a machine, as a pure function of the operation and the facts."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Op, StepPlan
from sparda_core.policy import LAST_SELECTION
from sparda_core.shapes import BlockSpec, ModelShape


@attrs.frozen(kw_only=True)
class Work:
    """What one operation asks of a machine.

    flops       floating point operations, a multiply-add counted as two
    hbm_bytes   device memory read and written
    passed_bytes  those of hbm_bytes that one launch of the operation writes and the next one reads, counted twice
    h2d_bytes   moved up the link, host to device
    d2h_bytes   moved down the link
    pieces      separate transfers that make up h2d_bytes or d2h_bytes
    ctas        thread blocks of the grid; 0 where no kernel of ours is behind it
    cluster     thread blocks that must start together, on neighbouring SMs (1: each for itself)
    ctas_per_sm thread blocks of this kernel that one SM holds at once
    cta_bytes_per_s  what one thread block can draw of device memory; 0: no limit of its own
    searched    candidates among which each thread block looks for its best: blocks to choose, slots to give away
    sms         SMs held for the whole operation (copy kernels)
    in_flight_bytes  bytes that each copy CTA keeps in flight; 0: the profile's own figure
    repeated    True for a list that was copied before (address translations are warm)
    launches    kernels launched on a GPU; 0 where another operation's kernel does it along
    """

    flops: float = 0.0
    hbm_bytes: float = 0.0
    passed_bytes: float = 0.0
    h2d_bytes: float = 0.0
    d2h_bytes: float = 0.0
    pieces: int = 0
    ctas: int = 0
    cluster: int = 1
    ctas_per_sm: int = 1
    cta_bytes_per_s: float = 0.0
    searched: float = 0.0
    sms: int = 0
    in_flight_bytes: float = 0.0
    repeated: bool = False
    launches: int = 1


@attrs.frozen(kw_only=True)
class WorkContext:
    """What work depends on besides the facts. Byte sizes are per value.

    forecast         whether layers make Forecasts, each of the layer `forecast_lead` after it
    resident_layers  first layers that are never offloaded, hence never written through to the host store
    lead             layers that the plan knows a selection ahead
    copy_ctas        thread blocks of a copy kernel
    copy_cluster     how many of them must lie on neighbouring SMs
    copy_in_flight_bytes  bytes each of them keeps in flight; 0: the profile's own figure
    policy           which slots make room (sparda_core/policy.py); all but the last selection's search for them
    """

    shape: ModelShape
    spec: BlockSpec
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    host_kv_bytes: float = 2.0
    entry_bytes: float = 2.0
    activation_bytes: float = 2.0
    copy_ctas: int = 2
    copy_cluster: int = 1
    copy_in_flight_bytes: float = 0.0
    forecast: bool = False
    forecast_lead: int = 1
    resident_layers: int = 0
    lead: int = 0
    policy: str = LAST_SELECTION

    def under(self, plan: StepPlan) -> WorkContext:
        """The same with what a plan settles."""
        return attrs.evolve(self, resident_layers=plan.resident_layers, lead=plan.lead)

    @property
    def block_bytes(self) -> float:
        """K and V of one block of one KV head on the device."""
        return 2 * self.spec.block * self.shape.head_dim * self.kv_bytes

    @property
    def host_block_bytes(self) -> float:
        """The same in the host store: one miss, one contiguous run."""
        return 2 * self.spec.block * self.shape.head_dim * self.host_kv_bytes


WorkFunction = Callable[[Op, StepFacts, WorkContext], Work]
