"""LinkSchedule: when the bytes of an emulated link arrive. Arithmetic only; nobody sleeps here."""

from __future__ import annotations

from sparda_core.errors import ConfigError

_NS = 1_000_000_000


class LinkSchedule:
    """A serial link of exactly `bytes_per_s`, or one without a limit of its own (None).

    Times are integer nanoseconds of one clock. Every arrival is counted from the start of its transfer,
    so that a late wake-up delays nothing after it; a transfer submitted while the link was busy starts
    when the one before it ended on the schedule.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ConfigError(f"link_bytes_per_s={bytes_per_s} must be > 0, or None for no limit")
        self.bytes_per_s = bytes_per_s
        self._free_ns = 0
        self._start_ns = 0

    def begin(self, *, submitted_ns: int, now_ns: int) -> int:
        """Start of the next transfer: when it was submitted or the link became free; without a limit, now."""
        self._start_ns = now_ns if self.bytes_per_s is None else max(submitted_ns, self._free_ns)
        return self._start_ns

    def arrival(self, size_bytes: int, *, now_ns: int) -> int:
        """When the whole transfer of `size_bytes` has arrived, given that it was copied by `now_ns`."""
        if self.bytes_per_s is None:
            self._free_ns = now_ns
        else:
            self._free_ns = max(now_ns, self._start_ns + round(size_bytes / self.bytes_per_s * _NS))
        return self._free_ns

    def arrived_bytes(self, *, start_ns: int, now_ns: int) -> int | None:
        """Bytes that have arrived `now_ns` of a transfer that started at `start_ns`; None without a limit.

        Safe to ask from any thread.
        """
        return None if self.bytes_per_s is None else int(max(0, now_ns - start_ns) * self.bytes_per_s / _NS)
