"""What a combination takes of device and host memory, so that a point that does not fit never gets a time."""

from __future__ import annotations

import attrs

from sparda_core.errors import CapacityError
from sparda_core.facts import StepFacts
from sparda_core.footprint import SCALE_BYTES, bias_bytes, entry_bytes, slot_count, store_blocks, weight_bytes
from sparda_core.plan import Kind, StepPlan
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile import Profile
from sparda_core.work import WorkContext


@attrs.frozen(kw_only=True)
class MemoryNeed:
    """Bytes by what they hold.

    weights   all projections, embeddings, and the Forecast's where the model has one
    entries   compressed keys of every layer
    bias      token biases of every layer and their means, where the model has them
    resident  pages of the layers that stay on the device
    pools     slots of the offloaded layers
    staging   two layers' earlier blocks, while a prefill chunk runs
    scales    of blocks whose host copy is narrower than the device's; they lie on the device
    reserved  taken before anything is loaded
    host      pages of the offloaded layers, of all GPUs of the host
    """

    weights: float
    entries: float
    bias: float
    resident: float
    pools: float
    staging: float
    scales: float
    reserved: float
    host: float

    @property
    def device(self) -> float:
        """Bytes of device memory."""
        kept = self.entries + self.bias + self.resident + self.pools + self.staging + self.scales
        return self.weights + kept + self.reserved


def memory_need(plan: StepPlan, facts: StepFacts, context: WorkContext, profile: Profile) -> MemoryNeed:
    """Bytes that the rows of `facts` take under `plan`, on one GPU and in the host's memory."""
    shape, spec = context.shape, context.spec
    offloaded = shape.layers - plan.resident_layers
    lengths = [int(n) for n in facts.lengths[facts.active]]
    blocks = sum(map(spec.block_count, lengths))
    resident, kept = (store_blocks(shape, spec, lengths, layers) for layers in (plan.resident_layers, offloaded))
    staged = 2 * blocks if offloaded and any(op.kind == Kind.STAGE for op in plan.ops) else 0
    gpus = profile.gpus if isinstance(profile, GpuProfile) else 1
    return MemoryNeed(
        weights=weight_bytes(shape, forecast=context.forecast, width=context.weight_bytes),
        entries=entry_bytes(shape, spec, lengths, context.entry_bytes),
        bias=bias_bytes(shape, spec, lengths),
        resident=resident * context.block_bytes,
        pools=slot_count(shape, len(lengths), offloaded, facts.slots) * context.block_bytes,
        staging=shape.kv_heads * staged * context.block_bytes,
        scales=kept * SCALE_BYTES if context.host_kv_bytes < context.kv_bytes else 0,
        reserved=profile.reserved_bytes,
        host=gpus * kept * context.host_block_bytes,
    )


def shortage(need: MemoryNeed, profile: Profile) -> CapacityError | None:
    """The error that says which memory is too small and by how much; None where everything fits."""
    shared = profile.host_bytes is None
    device = need.device + (need.host if shared else 0.0)
    if device > profile.device_bytes:
        way = "use fewer slots" if need.host else "choose a runtime that offloads"
        hint = f"lower the batch or the context, or {way}"
        return _error("device", device, profile.device_bytes, profile, hint)
    if profile.host_bytes is not None and need.host > profile.host_bytes:
        hint = "lower the batch or the context, keep more layers resident, or say how much your machine has (host_gb)"
        return _error("host", need.host, profile.host_bytes, profile, hint)
    return None


def _error(tier: str, need: float, have: float, profile: Profile, hint: str) -> CapacityError:
    says = (
        f"out of memory on profile {profile.name!r}: {tier} memory needs {need / 1e9:.1f} of {have / 1e9:.1f} GB, "
        f"{(need - have) / 1e9:.3g} GB too much"
    )
    return CapacityError(tier=tier, need=int(need), free=int(have), unit="bytes", hint=hint, says=says)
