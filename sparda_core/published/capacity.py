"""Memory that the reference release takes, from reading how it allocates; and whether a cell fits."""

from __future__ import annotations

import attrs

from sparda_core.published.table import Mode
from sparda_core.simulator.profile import Profile
from sparda_core.work import WorkContext

#: Score tensors (KV heads, tokens, entries) of one sequence at the peak of its prefill; it is not cut into chunks.
#: The feed-forward's temporaries, one sequence's tokens times three widths, are about as large.
SCORE_TENSORS = 3
#: Tokens beyond the prompt for which the release reserves its stores.
GENERATION = 6


@attrs.frozen(kw_only=True)
class ReferenceNeed:
    """Bytes by what they hold.

    full     every block of the layers that lie on the device whole
    slots    the working buffer of `budget` blocks, one for each layer; the mode without offload has it too
    entries  compressed keys of every layer
    peak     temporaries of one sequence's prefill
    host     pinned stores, each rounded up to a power of two by the allocator
    """

    weights: float
    full: float
    slots: float
    entries: float
    peak: float
    reserved: float
    host: float

    @property
    def device(self) -> float:
        """Bytes of device memory."""
        return self.weights + self.full + self.slots + self.entries + self.peak + self.reserved


def reference_need(mode: Mode, *, batch: int, context: int, work: WorkContext, profile: Profile) -> ReferenceNeed:
    """Bytes of `batch` rows of `context` tokens."""
    shape, spec = work.shape, work.spec
    resident = {Mode.RESIDENT: shape.layers, Mode.SYNC: 0}.get(mode, 1)
    token_bytes = shape.kv_heads * shape.head_dim * work.kv_bytes  # K, or V, of one layer
    entries = spec.entry_count(context)
    store = int(batch * (context + GENERATION) * token_bytes)
    forecasts = shape.layers * shape.forecast_weights if mode in (Mode.NO_PREFETCH, Mode.PREFETCH) else 0
    return ReferenceNeed(
        weights=(shape.weights + forecasts) * work.weight_bytes,
        full=2.0 * resident * store,
        slots=2.0 * shape.layers * batch * spec.budget * spec.block * token_bytes,
        entries=shape.layers * batch * entries * shape.kv_heads * shape.head_dim * work.entry_bytes,
        peak=SCORE_TENSORS * shape.kv_heads * context * entries * work.activation_bytes,
        reserved=profile.reserved_bytes,
        host=2.0 * (shape.layers - resident) * (1 << (store - 1).bit_length()),
    )


def reference_problem(need: ReferenceNeed, profile: Profile) -> str | None:
    """Which memory is too small, with the numbers; None where the cell fits."""
    for tier, wanted, has in (("device", need.device, profile.device_bytes), ("host", need.host, profile.host_bytes)):
        if has is not None and wanted > has:
            return f"{tier} memory: {wanted / 1e9:.1f} of {has / 1e9:.1f} GB"
    return None
