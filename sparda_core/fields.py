"""What a document read from a file must hold: fields of the right kind, numbers that are some. Torch-free."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

NUMBER: tuple[type, ...] = (int, float)
TEXT_OR_NONE: tuple[type, ...] = (str, type(None))
_PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: NUMBER, str: (str,), bool: (bool,)}


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


def check_kinds(value: Any, where: str = "") -> None:
    """Raise TypeError where a field of an attrs class, or of one inside it, is not what its annotation says.

    Whole numbers are fine for `float`; NaN, infinities and truth values are no numbers.
    """
    hints = typing.get_type_hints(type(value))
    for field in attrs.fields(type(value)):
        _check(getattr(value, field.name), hints[field.name], f"{where}{field.name}")


def _check(value: Any, hint: Any, where: str) -> None:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return
        known = [one for one in inner if one is not type(None)]
        if len(known) == 1:
            _check(value, known[0], where)
        return
    if hint in _PLAIN:
        require({where: value}, "a document", **{where: _PLAIN[hint]})
    elif attrs.has(hint):
        check_kinds(value, f"{where}.")
    elif origin in (tuple, list, dict):
        if not isinstance(value, origin):
            raise TypeError(f"{where} is {_shown(value)}, must be a {origin.__name__}")
        for at, item in value.items() if origin is dict else enumerate(value):
            _check(item, inner[-1] if origin is dict or inner[-1] is not ... else inner[0], f"{where}[{at}]")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
