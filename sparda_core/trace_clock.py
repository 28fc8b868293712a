"""Time as the trace format wants it."""

from __future__ import annotations

import math


def microseconds(ns: int) -> float:
    """Nanoseconds as the microseconds of `ts` and `dur`, such that no viewer loses one.

    Some viewers cut `ts` x 1000 to an integer, and 1.001 x 1000 is a hair below 1001 in floating
    point: two slices that touch would then overlap by a nanosecond. The next float above is as near.
    """
    value = ns / 1000
    return value if int(value * 1000.0) == ns else math.nextafter(value, math.inf)
