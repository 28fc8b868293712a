"""A list of misses told to the host is the reference's, whatever its length; nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.errors import ConfigError  # isort: skip
from sparda_core.kernels.early import AT_END, early_of
from sparda_core.kernels.tables import DeviceDiff
from sparda_core.kernels.tell import reference
from sparda_core.kernels.tell.gpu import TILE, tell_list

ON_GPU = DEVICE.type == "cuda"
#: In words that nobody told.
LEFT = -7


def host_ints(*size: int) -> torch.Tensor:
    return torch.full(size, LEFT, dtype=torch.int32, pin_memory=ON_GPU)


def drawn(room: int, count: int) -> DeviceDiff:
    made = torch.Generator().manual_seed(room + count)
    ids = torch.randint(0, 2**31 - 1, (2, room), dtype=torch.int32, generator=made).to(DEVICE)
    length = torch.full((1,), count, dtype=torch.int32, device=DEVICE)
    no = length[:0]
    return DeviceDiff(
        physical=no, tail=no, source=ids[0], target=ids[1], count=length, misses=no, opened=no
    )  # fmt: skip


def told_by(diff: DeviceDiff, room: int, early: int = AT_END) -> tuple[list[int], list[list[int]]]:
    count, ids = host_ints(1), host_ints(2, room)
    tell_list(diff, count, ids, early=early)
    if ON_GPU:
        torch.cuda.synchronize()
    return count.tolist(), ids.tolist()


@pytest.mark.parametrize("count", [0, 1, 5, TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
def test_what_the_host_reads_is_what_the_reference_tells(count: int) -> None:
    room = 2 * TILE + 3
    diff = drawn(room, count)
    for early in range((early_of(DEVICE, None) if ON_GPU else 0) + 1):
        want_count, want = np.full(1, LEFT, np.int32), np.full((2, room + 5), LEFT, np.int32)
        length, source, target = (part.cpu().numpy() for part in (diff.count, diff.source, diff.target))
        reference.tell_list(length, source, target, want_count, want)
        assert told_by(diff, room + 5, early) == (want_count.tolist(), want.tolist())


def test_no_more_is_written_than_the_list_has_room_for_whatever_its_count_says() -> None:
    diff = drawn(6, 6)
    diff.count.fill_(900)
    count, (source, target) = told_by(diff, 40)
    assert count == [900]
    assert source == diff.source.tolist() + [LEFT] * 34
    assert target == diff.target.tolist() + [LEFT] * 34


def test_room_that_is_too_small_or_of_another_type_is_refused() -> None:
    diff = drawn(6, 3)
    with pytest.raises(ConfigError, match=r"room for 5 misses.*all 6"):
        tell_list(diff, host_ints(1), host_ints(2, 5))
    with pytest.raises(ConfigError, match="want int32"):
        tell_list(diff, host_ints(1), host_ints(2, 6).long())
    with pytest.raises(ConfigError, match="told_count has shape"):
        tell_list(diff, host_ints(2), host_ints(2, 6))
