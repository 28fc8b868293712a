from __future__ import annotations

import threading

from sparda_core.latch import Latch


def test_a_latch_is_closed_until_it_is_opened_and_then_stays_open() -> None:
    latch = Latch()
    assert not latch.nap(0.001)
    latch.open()
    latch.open()
    assert latch.nap(60)
    assert latch.nap(60)


def test_everybody_who_waits_goes_on_though_the_bell_wakes_one_at_once() -> None:
    latch, gone_on = Latch(), list[int]()

    def wait(number: int) -> None:
        while not latch.nap():
            pass
        gone_on.append(number)

    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in waiting:
        thread.start()
    latch.open()
    for thread in waiting:
        thread.join(10)
    assert sorted(gone_on) == [0, 1, 2]


def test_a_bell_that_somebody_heard_and_forgot_keeps_nobody() -> None:
    """As after a signal between hearing the bell and looking at the flag."""
    latch = Latch()
    latch.open()
    latch._bell.acquire()
    assert latch.nap(60)
