"""The Python block of docs/gpu.md runs as it stands: on a GPU as a reader runs it, elsewhere on a tiny model."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from sparda_core.models.model import Model
from sparda_core.models.tiny import tiny_model
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.planner import PlanWriter
from tests.gpu.session.worlds import SHAPE
from tests.gpu_env import DEVICE
from tests.house.tree import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
pytestmark = [pytest.mark.model] if DEVICE.type == "cuda" else []


class Letters:
    """A tokenizer of 97 letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % SHAPE.vocab for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(32 + token) for token in tokens)


def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the page becomes a tiny one, which opens a GPU session though it lies on a CPU."""
    letters: Any = Letters()
    model = attrs.evolve(tiny_model(SHAPE, seed=3, device=DEVICE), tokenizer=letters)

    def load(source: str, *, device: str) -> Model:
        assert (source, device) == ("smollm2", "cuda")
        return model

    def opened(self: PlanWriter, model: Any, *, selector: Any, spec: Any, **options: Any) -> GpuSession:
        return GpuSession(model, runtime=self, selector=selector, spec=spec, options=GpuOptions.of(**options))

    monkeypatch.setattr("sparda_core.models.load.load_model", load)
    monkeypatch.setattr(PlanWriter, "open", opened)


def test_the_page_decodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = BLOCK.findall((ROOT / "docs" / "gpu.md").read_text())
    if DEVICE.type != "cuda":
        _tiny(monkeypatch)
        block = re.sub(r"\b(draw|run)\(\d+\)", r"\1(2)", block)  # the interpreter takes its time
    names: dict[str, Any] = {}
    exec(compile(block, "gpu.md", "exec"), names)  # noqa: S102 -- our own page
    assert set(names["drawn"]) == {names["row"], names["other"]}
    assert names["facts"].lengths.tolist()[0] > 0
    assert "moved: " in capsys.readouterr().out
