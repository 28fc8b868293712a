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
    for device in (("cpu", "--threads", "2"), ("cuda",)):  # not all cores: other processes test beside this one
        assert main([*LINE, "--json", "--device", *device]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    assert len(texts[0]) > 40


@pytest.mark.gpu
@pytest.mark.model
def test_what_is_of_a_cpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--device", "cuda", "--threads", "1"]) == 2
    assert "are of a CPU" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.model
def test_options_of_a_session_reach_it_and_its_memory_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--slots", "12", "--policy", "lru", "--copy-ctas", "1", "--copy-in-flight-kib", "64", "--no-graph")
    assert main([*LINE, "--json", "--device", "cuda", *options, "--prefill", "selector"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["memory"]["slots"] == 12
    assert told["memory"]["tokens"] == told["prompt_tokens"] + 24
    assert "memory for 1 row of" in err
