"""The libraries that only checking needs, loaded when a check starts."""

from __future__ import annotations

import importlib
from types import ModuleType

from sparda_core.errors import ConfigError


def needed(module: str) -> ModuleType:
    """An installed module; raises ConfigError that names the extra where it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as wrong:
        raise ConfigError(
            f"module={module!r} is not installed, and laws are checked with it: pip install 'sparda[testing]'"
        ) from wrong
