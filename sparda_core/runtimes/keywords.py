"""Options classes from keywords, unknown ones refused with the known. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from sparda_core.errors import ConfigError

if TYPE_CHECKING:
    Options = TypeVar("Options", bound=attrs.AttrsInstance)


def from_keywords(cls: type[Options], whose: str, options: Mapping[str, Any]) -> Options:
    """An instance of an attrs class; raises ConfigError for a name that is none of its fields.

    whose  session the options are of, for the message
    """
    known = [field.name for field in attrs.fields(cls)]
    for name in options:
        if name not in known:
            raise ConfigError(f"option {name!r} of a {whose} session is unknown; known: {', '.join(known)}")
    return cls(**options)
