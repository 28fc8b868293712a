"""`sparda generate --device cuda`: the text of a CPU."""

from __future__ import annotations

import json

import pytest

from sparda_core.cli.main import main

LINE = ("generate", "The three laws of robotics are", "--max-new-tokens", "24", "--budget", "8", "--local", "2")


@pytest.mark.gpu
@pytest.mark.model
def test_the_text_is_that_of_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for device in ("cpu", "cuda"):
        assert main([*LINE, "--json", "--device", device]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    assert len(texts[0]) > 40


@pytest.mark.gpu
@pytest.mark.model
def test_what_is_of_a_cpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, said in ((("--threads", "1"), "are of a CPU"), (("--prefill", "selector"), "mode='dense'")):
        assert main([*LINE, "--device", "cuda", *option]) == 2
        assert said in capsys.readouterr().err
