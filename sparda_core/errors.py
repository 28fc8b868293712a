"""Everything this package raises on purpose, under one root.

A message names the thing, its value, the bound it broke and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpardaError(Exception):
    """Root of every error raised on purpose."""


class ConfigError(SpardaError, ValueError):
    """The caller asked for something that cannot work."""


class UnknownNameError(ConfigError):
    """A name that no registry, profile or shape table knows; carries the nearest known ones.

    suffix  how a file ends that may be named instead, as in ".toml"
    """

    def __init__(self, *, what: str, name: str, known: Iterable[str], suffix: str = "") -> None:
        self.what, self.name, self.known = what, name, tuple(sorted(known))
        near = difflib.get_close_matches(str(name), self.known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        file = f"; or name a file that ends in {suffix}" if suffix else ""
        super().__init__(f"{what}={name!r} is unknown; {hint}known: {', '.join(self.known) or 'none'}{file}")


class CombinationError(ConfigError):
    """A selector and a runtime that cannot work together; names the nearest workable choice."""

    def __init__(self, *, selector: str, runtime: str, reason: str, nearest: str) -> None:
        self.selector, self.runtime, self.reason, self.nearest = selector, runtime, reason, nearest
        super().__init__(
            f"selector={selector!r} cannot run with runtime={runtime!r}: {reason}; nearest workable choice: {nearest}"
        )


class PlanError(ConfigError):
    """A step plan that no executor could run."""


class WeightsError(ConfigError):
    """Weights that are missing, truncated or of the wrong shape."""


class RecordingError(ConfigError):
    """A recording (selections, facts, traces) that is malformed or does not fit the request."""


class ProfileError(ConfigError):
    """A hardware profile that is malformed or contradicts physics."""


class CapacityError(SpardaError, RuntimeError):
    """A tier that cannot hold what was asked of it; `says` replaces the plain statement of the numbers."""

    def __init__(self, *, tier: str, need: int, free: int, unit: str, hint: str, says: str = "") -> None:
        self.tier, self.need, self.free, self.unit = tier, need, free, unit
        super().__init__(f"{says or f'tier={tier!r} needs {need} {unit} but has {free} free'}; {hint}")


class RowError(SpardaError, LookupError):
    """A row that does not exist, or was retired."""


class LaneError(SpardaError, RuntimeError):
    """A copy that failed, or a copy lane that stopped before it was done."""
