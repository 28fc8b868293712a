"""Starting a small kernel before the one ahead of it in the stream has quite ended (programmatic dependent launch).

Its programs take their places as those of the kernel ahead leave theirs, load what was settled earlier (weights,
positions), and wait for the end of that kernel before they look at its results: part of a launch's 1.5 to 2 us lies
behind other work. From compute capability 9.0 on; a kernel launched so gives the same results.

What is read before the wait must be older than the kernel ahead. Every kernel here waits in all its programs, so
whatever came before the kernel ahead has ended.
"""

from __future__ import annotations

import torch


def can_launch_early(device: torch.device) -> bool:
    """Whether this device can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_early(*, early: bool) -> dict[str, bool]:
    """What a launch is told: the kernel's own constant, and the launcher's option where it is asked for."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
