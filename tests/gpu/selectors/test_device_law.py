"""The law that a GPU half chooses what its CPU half chooses: it holds, and it can fail."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pytest

from sparda_core.errors import ConfigError
from sparda_core.selector import DeviceRoom, DeviceSelector
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.oracle import Oracle
from sparda_core.selectors.uniform import Uniform
from sparda_core.testing import LawBroken, Scene, check_selector
from tests.gpu_env import DEVICE

SCENE = Scene(kv_heads=2, group=2, tokens=(120, 37), seed=3)


@attrs.frozen(kw_only=True)
class TwoMinds(Uniform):
    """Its GPU half draws by another seed."""

    name: ClassVar[str] = "two-minds"

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        return Uniform(seed=self.seed + 1).bind_device(room)


def test_the_law_of_the_two_halves_holds_and_refuses_halves_that_differ() -> None:
    for selector in (Uniform(), Forecast()):
        assert check_selector(selector, laws=["device"], device=DEVICE.type, scene=SCENE).held == ("device",)
    with pytest.raises(LawBroken, match="law 'device' is broken"):
        check_selector(TwoMinds(), laws=["device"], device=DEVICE.type, scene=SCENE)


def test_without_a_device_or_a_gpu_half_the_law_is_waived_and_says_so() -> None:
    waived = check_selector(Uniform(), laws=["device"], scene=SCENE).waived
    assert waived == {"device": "no device was given"}
    waived = check_selector(Oracle(), laws=["device"], device=DEVICE.type, scene=SCENE).waived
    assert waived == {"device": "it has no GPU half (bind_device)"}


@pytest.mark.skipif(DEVICE.type == "cuda", reason="with a GPU nothing is interpreted")
def test_a_device_where_kernels_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'cuda' is not there"):
        check_selector(Uniform(), laws=["device"], device="cuda", scene=SCENE)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1 before anything imports Triton"):
        check_selector(Uniform(), laws=["device"], device="cpu", scene=SCENE)
