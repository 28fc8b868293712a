"""On a GPU the plan of a session's memory is told, or refused, before a weight is moved there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from sparda_core.cli.main import main
from sparda_core.models.forecast_weights import save_forecast
from sparda_core.models.load import ReadModel
from sparda_core.models.tiny import random_forecast
from sparda_core.runtimes.gpu.capacity import CapacityPlan
from tests.cli.conftest import Refusal
from tests.cli.files import SPEC, TINY, Files

Captured = pytest.CaptureFixture[str]
RUN = ("--max-new-tokens", "6", "--device", "cuda")


class Moved(Exception):  # noqa: N818 - no failure, but a place to stop at
    """A weight would have been moved."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says that it has one."""

    def moved(*_: Any) -> None:
        raise Moved

    monkeypatch.setattr("sparda_core.models.load.check_device", lambda device: None)
    monkeypatch.setattr(ReadModel, "on", moved)


def options(tiny: Files) -> tuple[str, ...]:
    return (*tiny.options[:4], *tiny.reading(300), *SPEC)


@pytest.mark.usefixtures("gpu")
def test_the_plan_is_told_first(tiny: Files, capsys: Captured) -> None:
    given = ("--slots", "9", "--policy", "lru", "--places", "2", "--host-dtype", "fp8", "--gpu-memory-gib", "4")
    assert main(["generate", *options(tiny), *RUN, *given]) == 1
    said = capsys.readouterr().err
    assert "memory for 2 rows of 306 tokens, 9 slots: device 2." in said
    assert "of 4.29 GB (reserved 2.00" in said
    assert said.index("memory for") < said.index("Moved")


@pytest.mark.usefixtures("gpu")
def test_what_does_not_fit_is_refused_with_the_numbers_and_nothing_is_moved(tiny: Files, refusal: Refusal) -> None:
    said = refusal("generate", *options(tiny), *RUN, "--gpu-memory-gib", "1")
    assert "the session needs 2." in said
    assert "of 1.07 GB of device memory" in said


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--copy-in-flight-kib", "100"), "in_flight_bytes=102400 must be a power of two"),
        (("--engine", "copy-engin"), "did you mean 'copy-engine'?"), (("--early", "7"), "--early"),
        (("--threads", "1"), "are of a CPU"), (("--slots", "2"), "slots=2 must be"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_before(
    tiny: Files, refusal: Refusal, given: tuple[str, ...], said: str
) -> None:
    assert said in refusal("generate", *options(tiny), *RUN, *given)


@pytest.fixture
def plans(gpu: None, monkeypatch: pytest.MonkeyPatch) -> list[CapacityPlan]:
    """What was told, in place of words."""
    told: list[CapacityPlan] = []

    def keep(plan: CapacityPlan) -> str:
        told.append(plan)
        return ""

    monkeypatch.setattr(CapacityPlan, "as_line", keep)
    return told


def test_half_the_width_takes_half_the_memory(tiny: Files, plans: list[CapacityPlan]) -> None:
    for dtype in ("float32", "bfloat16"):
        assert main(["generate", *options(tiny), *RUN, "--dtype", dtype]) == 1
    wide, narrow = (plan.device_parts() for plan in plans)
    assert wide["weights"] == 2 * narrow["weights"] > 0
    assert wide["slots"] == 2 * narrow["slots"] > 0


def test_a_plan_keeps_as_many_layers_resident_as_the_forecast_looks_ahead(
    tiny: Files, plans: list[CapacityPlan], tmp_path: Path
) -> None:
    file = tmp_path / "two.safetensors"
    save_forecast(file, random_forecast(attrs.evolve(TINY, name="tiny"), seed=1, dtype=torch.float32, lead=2))
    for forecast in (tiny.forecast, file):
        given = ("--model", str(tiny.model), "--forecast", str(forecast), *tiny.reading(100), *SPEC)
        assert main(["generate", *given, *RUN]) == 1
    assert [plan.resident_layers for plan in plans] == [1, 2]


def test_options_of_a_gpu_are_refused_without_one(tiny: Files, refusal: Refusal) -> None:
    said = refusal("generate", "Hello", *tiny.options, "--early", "1", "--no-graph", "--engine", "uva")
    assert "--early, --engine, --no-graph: of a GPU session; add --device cuda" in said
