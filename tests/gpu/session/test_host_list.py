"""Lists of misses on the host, and what a host gather goes through."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.bench.gpu_clock import finish
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


def told(kept: HostList, diff: DeviceDiff) -> list[list[int]]:
    """What the host reads once the device has told this."""
    kept.tell(diff)
    finish()
    return [ids.tolist() for ids in kept.told()]


def test_a_list_is_told_as_long_as_it_is_and_stays_as_it_was_told() -> None:
    first, second = diff_of([5, 2, 8], [1, 0, 7], room=6), diff_of([3], [4], room=6)
    kept = HostList(first)
    kept.tell(first)
    finish()
    ids = kept.told()
    assert [part.tolist() for part in ids] == [[5, 2, 8], [1, 0, 7]]
    assert told(kept, second) == [[3], [4]]
    assert [part.tolist() for part in ids] == [[5, 2, 8], [1, 0, 7]]


@pytest.mark.parametrize("room", [4, 32, 33])
def test_a_list_of_nothing_and_one_of_all_that_there_is_room_for_are_told_as_that(room: int) -> None:
    nothing, every = diff_of([], [], room), diff_of(list(range(room)), list(range(7, room + 7)), room)
    kept = HostList(nothing)
    assert told(kept, nothing) == [[], []]
    assert told(kept, every) == [list(range(room)), list(range(7, room + 7))]


def test_a_list_that_nobody_told_since_it_was_read_is_refused() -> None:
    diff = diff_of([3], [4], room=6)
    kept = HostList(diff)
    with pytest.raises(LaneError, match="holds -1 blocks, of at most 6"):
        kept.told()
    assert told(kept, diff) == [[3], [4]]
    with pytest.raises(LaneError, match="before the device had told it"):
        kept.told()
    assert told(kept, diff) == [[3], [4]]


def test_a_length_that_cannot_be_is_refused_and_nothing_beyond_its_room_is_written() -> None:
    diff = diff_of([3], [4], room=6)
    diff.count.fill_(7)
    kept = HostList(diff)
    with pytest.raises(LaneError, match="holds 7 blocks, of at most 6"):
        told(kept, diff)


@pytest.mark.gpu
def test_a_captured_step_tells_its_list_anew_in_every_replay() -> None:
    diff = diff_of([], [], room=3000)
    kept = HostList(diff)
    told(kept, diff)  # compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.tell(diff)
    made = torch.Generator().manual_seed(3)
    for count in (0, 1, 1023, 1024, 1025, 3000, 2):
        ids = torch.randint(0, 2**31 - 1, (2, 3000), dtype=torch.int32, generator=made)
        diff.source.copy_(ids[0])
        diff.target.copy_(ids[1])
        diff.count.fill_(count)
        graph.replay()
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        end.synchronize()
        assert [part.tolist() for part in kept.told()] == ids[:, :count].tolist()


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
