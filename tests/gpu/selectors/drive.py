"""Runs the GPU half of a selector over the texts of `tests.selectors.world` as a session would."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparda_core.selector import Selector
from sparda_core.testing import device_drive
from sparda_core.testing.world import World
from tests.gpu_env import DEVICE


class DeviceDrive(device_drive.DeviceDrive):
    """The package's, on the device of the GPU tests."""

    def __init__(
        self, selector: Selector, world: World, *, places: int, tokens: int = 256, lead: int | None = None
    ) -> None:
        super().__init__(selector, world, places=places, device=DEVICE, tokens=tokens, lead=lead)


def same_choice(got: Any, want: np.ndarray) -> None:
    """CPU selections are [L, B, Hk, 1, budget]."""
    np.testing.assert_array_equal(got, want[:, :, :, 0])
