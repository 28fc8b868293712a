"""Options of a CPU session, and how many threads its compute lane runs on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.runtimes.keywords import from_keywords


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compute_threads() -> int:
    """Default threads of the compute lane: one core is left to the copy lane, for every runtime alike."""
    return max(1, cores() - 1)


#: More threads than any machine has cores; far more, and the library beneath ends the process.
MOST_THREADS = 4096


def _positive(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < math.inf):
        raise ConfigError(f"{attribute.name}={value!r} must be finite and > 0, or None for no limit of ours")


def _integer(least: int, most: int | None = None) -> Callable[[object, attrs.Attribute[Any], int | None], None]:
    def check(_: object, attribute: attrs.Attribute[Any], value: int | None) -> None:
        if value is None and attribute.default is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= (most or value):
            span = f">= {least}" if most is None else f"between {least} and {most}"
            raise ConfigError(f"{attribute.name}={value!r} must be an integer {span}")

    return check


@attrs.frozen(kw_only=True)
class SessionOptions:
    """How a session runs; none of it changes what it answers.

    link_bytes_per_s  emulated speed of the link; None: as fast as this machine copies
    threads           of the compute lane; None: all cores but one in decode, all in prefill, whose
                      transfers are few and large
    timeline          record when each operation of a decode step ran
    page_blocks       blocks per page of the stores: what a fork copies at its first write, per layer and KV head
    host_limit_bytes  most bytes of the host store; None: what the machine gives
    keep_queries      prompt queries kept per row and layer, for snapshots that another selector calibrates on;
                      `infinigen` asks for the whole prompt's (Hq D values a token and layer)
    """

    link_bytes_per_s: float | None = attrs.field(default=None, validator=_positive)
    threads: int | None = attrs.field(default=None, validator=_integer(1, MOST_THREADS))
    timeline: bool = False
    page_blocks: int = attrs.field(default=8, validator=_integer(1))
    host_limit_bytes: int | None = attrs.field(default=None, validator=_integer(1))
    keep_queries: int = attrs.field(default=0, validator=_integer(0))

    @classmethod
    def of(cls, **options: Any) -> SessionOptions:
        """Build from keywords; raises ConfigError for an unknown one."""
        return from_keywords(cls, "CPU", options)
