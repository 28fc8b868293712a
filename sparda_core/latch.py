"""Latch: an event between two threads that a signal cannot spoil.

`threading.Event` takes its lock in Python code, and Python looks for signals there: a Ctrl-C between the lock and the
code that gives it back leaves it held for ever, and whoever comes next hangs. A latch is a flag and a primitive lock
as a bell. Each call on the lock is one call of C, which Python does not interrupt halfway, and a bell that was rung
for somebody else, or for nobody, costs a nap and no more: the flag is what counts.
"""

from __future__ import annotations

import threading

#: Longest time that a waiting thread sleeps before it looks at the flag itself, seconds.
NAP_S = 0.02


class Latch:
    """Closed at first; one thread opens it, once, and it stays open. Any thread may look or wait."""

    __slots__ = ("_bell", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def open(self) -> None:
        """Let whoever waits go on. Opening twice is allowed, by the same thread."""
        if not self.is_open:
            self.is_open = True
            self._bell.release()

    def nap(self, seconds: float = NAP_S) -> bool:
        """Wait until it opens, and no longer than `seconds`; whether it is open."""
        if not self.is_open:
            self._bell.acquire(timeout=seconds)
        return self.is_open
