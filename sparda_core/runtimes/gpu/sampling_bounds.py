"""What a row's sampling may be set to. Torch-free."""

from __future__ import annotations

import numbers

from sparda_core.errors import ConfigError

#: Seeds are below this.
SEEDS = 2**63
#: The hottest that float32 holds.
HOTTEST = (2.0 - 2.0**-23) * 2.0**127


def check_sampling(temperature: float, top_p: float, seed: int) -> None:
    """Raise ConfigError outside 0 <= temperature < 2**128 (float32), 0 < top_p <= 1, 0 <= seed < 2**63."""
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ConfigError(f"{name}={value!r} must be a number")
    if not 0 <= temperature <= HOTTEST:
        raise ConfigError(f"temperature={temperature} must be >= 0 and below 2**128, as float32 holds it")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p={top_p} must be in (0, 1]")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise ConfigError(f"seed={seed} must be an integer in [0, 2**63)")
