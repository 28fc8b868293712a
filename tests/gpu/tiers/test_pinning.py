from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.latch import Latch
from sparda_core.runtimes.gpu import pinning
from sparda_core.runtimes.gpu.cuda_driver import PinningError
from sparda_core.runtimes.gpu.mapping import Mapping
from sparda_core.runtimes.gpu.pinning import METHODS, default_method, pinned_empty

MIB = 1 << 20
USABLE = METHODS[:3] if torch.cuda.is_available() else ("plain",)


class FakeDriver:
    """Keeps the books of a driver: what is pinned now, and what was ever given back."""

    def __init__(self, *, refuse_after: int = 10**9) -> None:
        self.held: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self._mappings: dict[int, Mapping] = {}
        self._left = refuse_after

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PinningError("cuMemHostRegister_v2", "CUDA_ERROR_OUT_OF_MEMORY")

    def host_alloc(self, size: int) -> int:
        self._count()
        mapping = Mapping(size)
        address: int = mapping.address
        self._mappings[address] = mapping
        self.held[address] = size
        self.calls.append(("alloc", size))
        return address

    def host_free(self, address: int) -> None:
        del self.held[address]
        self._mappings.pop(address).close()
        self.calls.append(("free", address))

    def register(self, address: int, size: int) -> None:
        self._count()
        assert address not in self.held
        self.held[address] = size

    def unregister(self, address: int) -> None:
        del self.held[address]
        self.calls.append(("unregister", address))


def resident_bytes() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


@pytest.mark.parametrize("method", USABLE)
def test_memory_is_as_large_as_asked_and_may_be_written_to_its_ends(method: str) -> None:
    size = 5 * MIB + 4096
    memory = pinned_empty(size, method=method)
    assert memory.dtype == torch.uint8
    assert memory.shape == (size,)
    memory[0], memory[-1] = 3, 4
    assert (int(memory[0]), int(memory[-1])) == (3, 4)
    if method != "plain":
        assert memory.is_pinned()
        assert memory[MIB:].is_pinned()


@pytest.mark.parametrize("method", ["register-4k", "plain"])
def test_the_bytes_held_are_the_bytes_asked_for_within_one_percent(method: str) -> None:
    size = 65 * MIB  # just above a power of two, where rounding up would nearly double it
    driver = FakeDriver()
    before = resident_bytes()
    memory = pinned_empty(size, method=method, driver=driver, chunk_bytes=16 * MIB)
    memory.fill_(1)
    assert resident_bytes() - before == pytest.approx(size, rel=0.01, abs=MIB)


@pytest.mark.parametrize("method", ["cuda-host-alloc", "register-4k"])
def test_memory_is_freed_once_and_not_before_its_last_view_is_gone(method: str) -> None:
    driver = FakeDriver()
    view = pinned_empty(8 * MIB, method=method, driver=driver, chunk_bytes=2 * MIB).view(torch.float32)[10:20]
    gc.collect()
    assert sum(driver.held.values()) == 8 * MIB
    view.fill_(1.5)
    del view
    gc.collect()
    assert not driver.held
    freed = [call for call in driver.calls if call[0] in ("free", "unregister")]
    assert len(freed) == (1 if method == "cuda-host-alloc" else 4)
    assert len(set(freed)) == len(freed)


def test_a_store_is_registered_in_chunks_of_one_range_and_progress_is_told() -> None:
    driver, told = FakeDriver(), []
    memory = pinned_empty(
        7 * MIB, method="register-4k", driver=driver, chunk_bytes=2 * MIB, progress=lambda *at: told.append(at)
    )
    starts = sorted(driver.held)
    assert starts == [memory.data_ptr() + 2 * MIB * i for i in range(4)]
    assert [driver.held[at] // MIB for at in starts] == [2, 2, 2, 1]
    assert told == [(done * MIB, 7 * MIB) for done in (0, 2, 4, 6, 7)]


def test_chunks_begin_on_huge_pages_and_divide_no_unit() -> None:
    driver, unit = FakeDriver(), 24 << 10  # a block of head dim 96: no divisor of 2 MiB
    memory = pinned_empty(14 * MIB, method="register-4k", driver=driver, chunk_bytes=7 * MIB, unit=unit)
    offsets = [at - memory.data_ptr() for at in sorted(driver.held)]
    assert offsets == [0, 6 * MIB, 12 * MIB]
    assert all(offset % unit == offset % (2 * MIB) == 0 for offset in offsets)


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, ValueError])
def test_an_interrupt_between_two_chunks_leaves_nothing_pinned(wrong: type[BaseException]) -> None:
    driver = FakeDriver()

    def interrupt(done: int, _: int) -> None:
        if done:
            raise wrong

    with pytest.raises(wrong):
        pinned_empty(8 * MIB, method="register-4k", driver=driver, chunk_bytes=2 * MIB, progress=interrupt)
    assert not driver.held


def test_an_interrupted_allocation_is_given_back_as_soon_as_the_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, freed = threading.Event(), threading.Event()

    class SlowDriver(FakeDriver):
        def host_alloc(self, size: int) -> int:
            goes_on.wait(10)
            return super().host_alloc(size)

        def host_free(self, address: int) -> None:
            super().host_free(address)
            freed.set()

    def interrupted(latch: Latch, seconds: float) -> bool:
        raise KeyboardInterrupt

    driver = SlowDriver()
    monkeypatch.setattr(Latch, "nap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pinned_empty(MIB, method="cuda-host-alloc", driver=driver)
    monkeypatch.undo()
    goes_on.set()
    assert freed.wait(10)
    assert [name for name, _ in driver.calls] == ["alloc", "free"]
    assert not driver.held


@pytest.mark.parametrize(("method", "after"), [("cuda-host-alloc", 0), ("register-4k", 2)])
def test_short_memory_is_one_error_with_the_numbers_and_nothing_stays_pinned(method: str, after: int) -> None:
    driver = FakeDriver(refuse_after=after)
    with pytest.raises(CapacityError, match=r"OUT_OF_MEMORY.*lock memory") as raised:
        pinned_empty(8 * MIB, method=method, driver=driver, chunk_bytes=2 * MIB)
    assert raised.value.need == 8 * MIB
    assert raised.value.free > 0
    assert not driver.held


def test_more_than_the_control_group_allows_is_refused_before_anything_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinning, "memory_limit", lambda: 4 * MIB)
    driver = FakeDriver()
    with pytest.raises(CapacityError, match=f"needs {5 * MIB} bytes but has {4 * MIB} free"):
        pinned_empty(5 * MIB, method="register-4k", driver=driver)
    assert not driver.calls


def test_unknown_methods_and_those_that_need_a_gpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown; known: cuda-host-alloc"):
        pinned_empty(10, method="malloc")
    with pytest.raises(ConfigError, match="size=0"):
        pinned_empty(0)
    if not torch.cuda.is_available():
        assert default_method() == "plain"
        with pytest.raises(ConfigError, match="use method='plain'"):
            pinned_empty(10, method="register-huge")
