"""A combination generates on a GPU with the device's own sampling, and opens each kind of session by type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparda_core.compose import Combination, compose
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.planner import PlanWriter
from tests.gpu.session.worlds import SPEC, models, prompt
from tests.gpu_env import DEVICE

TOKENS = 6 if DEVICE.type == "cuda" else 3
PROMPT = prompt(37)


def pair_on(there: bool, **options: Any) -> Combination:  # noqa: FBT001
    return compose(models()[there], "forecast", "offload-prefetch", spec=SPEC, **options)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, a runtime opens GPU sessions all the same: kernels are interpreted."""

    def opened(self: PlanWriter, model: Any, *, selector: Any, spec: Any, **options: Any) -> GpuSession:
        asked = {"page_blocks": 2, "tokens": len(PROMPT) + 8, **options}
        return GpuSession(model, runtime=self, selector=selector, spec=spec, options=GpuOptions.of(**asked))

    if DEVICE.type != "cuda":
        monkeypatch.setattr(PlanWriter, "open", opened)


@pytest.mark.usefixtures("gpu")
def test_sampled_tokens_are_those_that_draw_gives() -> None:
    pair, sampling = pair_on(True), {"temperature": 1.5, "top_p": 0.9, "seed": 11}
    with pair.open_gpu(tokens=len(PROMPT) + 8) as session:
        row = session.add()
        session.set_sampling(row, **sampling)  # type: ignore[arg-type]
        session.prefill(row, PROMPT)
        first = session.tokens()[row]
        want = [first, *session.draw(TOKENS - 1)[row]]
    told: list[int] = []
    made = pair.generate(PROMPT, TOKENS, on_token=told.append, **sampling)  # type: ignore[arg-type]
    assert list(made.tokens) == want == told
    assert len(made.facts) == TOKENS - 1
    assert all(int(facts.selected.sum()) > 0 for facts in made.facts)


def test_greedy_tokens_and_facts_are_those_of_a_cpu(request: pytest.FixtureRequest) -> None:
    want = pair_on(False).generate(PROMPT, TOKENS)
    request.getfixturevalue("gpu")
    got = pair_on(True).generate(PROMPT, TOKENS)
    assert got.tokens == want.tokens
    assert [facts.misses.tolist() for facts in got.facts] == [facts.misses.tolist() for facts in want.facts]
    stopped = pair_on(True).generate(PROMPT, TOKENS, stop=[want.tokens[1]])
    assert stopped.tokens == want.tokens[: want.tokens.index(want.tokens[1]) + 1]


@pytest.mark.usefixtures("gpu")
def test_weights_that_overflow_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = torch.full((97,), float("nan"))
    monkeypatch.setattr(GpuSession, "prefill", lambda *_, **__: nothing)
    with pytest.raises(WeightsError, match="the largest logit is nan"):
        pair_on(True).generate(PROMPT, 2)


def test_a_session_of_another_device_is_refused_by_type() -> None:
    with pair_on(False).open_cpu() as session:
        assert session.on_selection is None
    with pytest.raises(ConfigError, match="does not lie on a CUDA device"):
        pair_on(False).open_gpu()


@pytest.mark.usefixtures("gpu")
def test_a_gpus_session_is_no_cpus() -> None:
    with pytest.raises(ConfigError, match="does not lie on the CPU"):
        pair_on(True).open_cpu()


def test_what_a_combination_plans_is_what_its_session_takes(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("gpu")
    pair = pair_on(True, tokens=64, page_blocks=2)
    with pair.open_gpu() as session:
        assert session.capacity == pair.capacity()
        taken, planned = session.machinery.tiers.allocated(), session.capacity.device_parts()
        assert {name: taken[name] for name in ("entries", "slots")} == {
            name: planned[name] for name in ("entries", "slots")
        }
