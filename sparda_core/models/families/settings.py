"""A config.json, read key by key. Every refusal names the file, the key, its value and what it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from sparda_core.errors import WeightsError

_REQUIRED = object()


@attrs.frozen(eq=False)
class Settings:
    """The settings of one checkpoint.

    raw     the JSON object
    source  how errors call the checkpoint
    name    the model's name
    A key whose value is null counts as absent.
    """

    raw: Mapping[str, Any]
    source: str
    name: str

    def get(self, key: str, default: Any = None) -> Any:
        """Whatever `key` holds, unchecked."""
        value = self.raw.get(key)
        return default if value is None else value

    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer; raises WeightsError for anything else."""
        return self._checked(key, default, lambda v: isinstance(v, int) and not isinstance(v, bool), "an integer")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A finite number as a float; raises WeightsError for anything else."""
        value = self._checked(key, default, is_number, "a finite number")
        return None if value is None else float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """A boolean; raises WeightsError for anything else."""
        return bool(self._checked(key, default, lambda v: isinstance(v, bool), "true or false"))

    def section(self, key: str) -> Settings | None:
        """An object within the object; None where it is absent or empty."""
        value = self._checked(key, {}, lambda v: isinstance(v, dict), "an object")
        return attrs.evolve(self, raw=value, source=f"{self.source} ({key})") if value else None

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: one, or a list of them; a negative one stands for none."""
        value = self.get(key, [])
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
            raise self.refusal(key, "a token id, or a list of them")
        return tuple(one for one in found if one >= 0)

    def must_be(self, key: str, want: Any, *, why: str = "") -> None:
        """Raise WeightsError unless `key` is absent or holds `want`."""
        if self.get(key, want) != want:
            raise self.refusal(key, repr(want), why=why)

    def refusal(self, key: str, want: str, *, why: str = "") -> WeightsError:
        """The error for a value that is not supported."""
        reason = f": {why}" if why else ""
        return WeightsError(f"{self.source}: {key}={self.raw.get(key)!r} is not supported, must be {want}{reason}")

    def _checked(self, key: str, default: Any, fits: Any, want: str) -> Any:
        value = self.raw.get(key)
        if value is None:
            if default is _REQUIRED:
                raise WeightsError(f"{self.source}: config.json lacks {key!r}; use a complete checkpoint")
            return default
        if not fits(value):
            raise self.refusal(key, want)
        return value


def is_number(value: object) -> bool:
    """Whether a value of a JSON document is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
