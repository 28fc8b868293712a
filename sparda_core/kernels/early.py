"""Starting a kernel before the one ahead of it in the stream has quite ended (programmatic dependent launch).

Its programs take their places, load what was settled earlier (weights, positions), and wait until the kernel ahead
has ended and all it wrote can be read: most of a launch's 1.5 to 2 us then lies behind other work. From compute
capability 9.0 on; a kernel launched so gives the same results. Three rules keep it so:

- Every program waits, and stores nothing before. So whatever came before the kernel ahead has ended as well, and
  nobody is still reading what is overwritten.
- Loads before the wait are of what is older than the kernel ahead. A kernel lets its successor come only after its
  own wait, so everything but the kernel ahead has ended by then.
- The first kernel of the compute lane after a wait for another lane, and the first of a step, are launched as usual:
  an early launch answers to the one kernel ahead of it, not to an event as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError

#: When a kernel starts: once the one ahead has ended; in the places that its programs leave; as soon as all of them
#: run, have waited themselves, and leave room.
AT_END, AS_IT_ENDS, AS_IT_RUNS = 0, 1, 2


def can_launch_early(device: torch.device) -> bool:
    """Whether this device can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def early_of(device: torch.device, wanted: int | None) -> int:
    """How early kernels on `device` start where `wanted` was asked for; None: as early as it can.

    Raises ConfigError for an unknown value, and for an early start on a device that knows none.
    """
    if wanted is not None and (isinstance(wanted, bool) or wanted not in (AT_END, AS_IT_ENDS, AS_IT_RUNS)):
        raise ConfigError(f"early={wanted!r} must be {AT_END}, {AS_IT_ENDS} or {AS_IT_RUNS}; None suits the device")
    if wanted is None:
        return AS_IT_RUNS if can_launch_early(device) else AT_END
    if wanted and not can_launch_early(device):
        raise ConfigError(
            f"early={wanted} needs a GPU of compute capability 9.0 or newer, not {device}: leave it out, or 0"
        )
    return wanted


def launch_early(early: int) -> dict[str, int]:
    """What a launch is told: the kernel's own constant, and the launcher's option where it is asked for."""
    return {"EARLY": early, "launch_pdl": True} if early else {"EARLY": AT_END}


@triton.jit
def wait_for_kernel_ahead(EARLY: tl.constexpr):  # noqa: ANN201
    """Wait, then let the kernel behind come; nothing where EARLY is 0."""
    if EARLY > 0:
        tl.extra.cuda.gdc_wait()
    if EARLY > 1:
        tl.extra.cuda.gdc_launch_dependents()
