"""How a capture is ended, told by what is called: CUDA itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparda_core.runtimes.gpu import capture as module


class Fakes:
    """Stands for CUDA: `broken` names calls that fail, once each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *broken: str) -> None:
        self.calls: list[str] = []
        self.broken = list(broken)
        graph = {name: self._call(name) for name in ("capture_begin", "capture_end")}
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(**graph))
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(module, name, self._call(name.removeprefix("_cuda_")))
        compute = SimpleNamespace(device=torch.device("cpu"), device_index=0)
        self.lanes: Any = SimpleNamespace(compute=compute, join=self._call("join"))

    def _call(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.calls.append(name)
            if name in self.broken:
                self.broken.remove(name)
                raise RuntimeError(f"{name} failed")

        return call

    def capture(self, *, fails: bool) -> None:
        def issue() -> None:
            self.calls.append("issue")
            if fails:
                raise ValueError("first")

        pool: Any = (0, 1)
        module.capture(issue, self.lanes, pool)


def test_a_capture_that_works_is_begun_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch)
    fakes.capture(fails=False)
    assert fakes.calls == ["capture_begin", "issue", "capture_end"]


def test_lanes_are_joined_before_a_failed_capture_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch)
    with pytest.raises(ValueError, match="first"):
        fakes.capture(fails=True)
    assert fakes.calls == ["capture_begin", "issue", "join", "capture_end"]


@pytest.mark.parametrize("also", [(), ("join",), ("join", "endAllocateToPool")])
def test_what_cuda_ended_by_itself_is_ended_for_torch(
    also: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    fakes = Fakes(monkeypatch, "capture_end", *also)
    with pytest.raises(ValueError, match="first"):
        fakes.capture(fails=True)
    freed = ["endAllocateToPool"] + ["releasePool"] * ("endAllocateToPool" not in also)
    again = ["capture_begin", "capture_end"]
    assert fakes.calls == ["capture_begin", "issue", "join", "capture_end", *freed, *again]


def test_an_end_that_fails_is_the_error_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch, "capture_end")
    with pytest.raises(RuntimeError, match="capture_end failed"):
        fakes.capture(fails=False)
