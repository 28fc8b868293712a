"""Lists of misses on the host, and what a host gather goes through."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.errors import LaneError
from sparda_core.kernels.tables import DeviceDiff
from sparda_core.runtimes.gpu.block_copies import _in_batches
from sparda_core.runtimes.gpu.host_list import HostList, Staging
from tests.gpu_env import DEVICE


def diff_of(sources: list[int], targets: list[int], room: int) -> DeviceDiff:
    ints = torch.full((3, room), 99, dtype=torch.int32, device=DEVICE)
    for row, values in zip(ints, (sources, targets, [len(sources)]), strict=True):
        row[: len(values)] = torch.tensor(values, dtype=torch.int32)
    no = ints[:0]
    return DeviceDiff(
        physical=no, tail=no, source=ints[0], target=ints[1], count=ints[2, :1], misses=no, opened=no
    )  # fmt: skip


def test_a_list_is_told_as_long_as_it_is_and_stays_as_it_was_told() -> None:
    first, second = diff_of([5, 2, 8], [1, 0, 7], room=6), diff_of([3], [4], room=6)
    kept = HostList(first)
    kept.ask(first)
    told = kept.told()
    assert [ids.tolist() for ids in told] == [[5, 2, 8], [1, 0, 7]]
    assert not kept.asked
    kept.ask(second)
    assert [ids.tolist() for ids in kept.told()] == [[3], [4]]
    assert [ids.tolist() for ids in told] == [[5, 2, 8], [1, 0, 7]]


def test_a_list_of_nothing_is_told_as_that() -> None:
    nothing = diff_of([], [], room=4)
    kept = HostList(nothing)
    kept.ask(nothing)
    assert [ids.size for ids in kept.told()] == [0, 0]


def test_staging_grows_at_least_by_doubling_and_keeps_its_width() -> None:
    staging, like = Staging(), torch.zeros(1, 8, dtype=torch.int64)
    sizes = []
    for blocks in (3, 2, 4, 9):
        host, there = staging.room(blocks, like, DEVICE)
        assert host.shape == there.shape == (blocks, 8)
        assert there.device.type == DEVICE.type
        sizes.append(host.untyped_storage().nbytes() // 64)
        staging.reads()
    assert sizes == [3, 3, 6, 12]


class Driver:
    """What a call for a batch of copies is given: addresses, bytes and the stream."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[list[int], list[int], list[int], int]] = []
        self._code = code

    def __call__(self, *given: Any) -> int:
        there, here, sizes, count, *_, one, stream = given
        assert one == 1
        told = [(ctypes.c_int64 * count).from_address(address)[:] for address in (there, here, sizes)]
        self.calls.append((*told, stream))
        return self._code


def test_a_long_list_is_submitted_in_several_calls_that_name_every_piece_once() -> None:
    driver, ids = Driver(), np.arange(10)
    _in_batches(driver)(ids * 5, ids * 7, 32, 99, 4)
    assert [len(there) for there, _, _, _ in driver.calls] == [4, 4, 2]
    assert [one for there, _, _, _ in driver.calls for one in there] == (ids * 5).tolist()
    assert [one for _, here, _, _ in driver.calls for one in here] == (ids * 7).tolist()
    assert all(set(sizes) == {32} and stream == 99 for _, _, sizes, stream in driver.calls)


def test_a_driver_that_refuses_is_told_of() -> None:
    with pytest.raises(LaneError, match="cuMemcpyBatchAsync failed with CUDA error 1"):
        _in_batches(Driver(code=1))(np.arange(3), np.arange(3), 32, 99, 64)
