"""What a document read from a file must hold: fields of the right kind, numbers that are some. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NUMBER: tuple[type, ...] = (int, float)
TEXT_OR_NONE: tuple[type, ...] = (str, type(None))


def require(document: object, where: str, /, **kinds: type | tuple[type, ...]) -> Mapping[str, Any]:
    """The document, if it is an object with these fields; more fields are fine.

    Truth values are no whole numbers here, and NaN and infinities no numbers.
    raises  TypeError naming `where` and the field
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{where} is {type(document).__name__}, must be an object")
    for name, kind in kinds.items():
        if name not in document:
            raise TypeError(f"{where} lacks {name!r}")
        value = document[name]
        wanted = kind if isinstance(kind, tuple) else (kind,)
        fits = isinstance(value, wanted) and not (isinstance(value, bool) and bool not in wanted)
        if not fits or (isinstance(value, int | float) and not _is_finite(value)):
            names = " or ".join(one.__name__ for one in wanted)
            raise TypeError(f"{where}: {name} is {_shown(value)}, must be {names}")
    return document


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
